//! What the kinds' statuses share: conditions, what is known of each address, and the journal of unfinished moves.
//!
//! Enumerations here are open on the wire. An older controller that reads a newer one's status finds `Unknown` instead
//! of failing to read the whole object, and so can leave it alone and say so.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The journal layout that this code writes and understands.
pub const MOVES_VERSION: i64 = 1;

/// One address and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressStatus {
    /// The address.
    pub address: String,

    /// `Attached`: on a node of ours. `Moving`: a move is under way. `Unattached`: on no machine. `Foreign`: on a machine
    /// outside this cluster. `Conflict`: another object owns it. `Missing`: the cloud does not know it. `Disabled`: beyond
    /// the desired number. `Unknown`: the cloud could not be asked.
    #[schemars(with = "String")]
    pub state: AddressState,

    /// The node that the address is on; absent while it is on none or on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// The last machine of ours that held the address. We take an address only from a machine we know this way, or that
    /// backs a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_holder: Option<Holder>,

    /// The last machines that the address has left and that have an address of their own again, at clouds that may not show that
    /// yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub previous_holders: Vec<String>,

    /// Name in the address's public PTR record, for clouds that store it on the machine. The controller saves it before it
    /// detaches the address and sets it again when it attaches the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub ptr_name: Option<String>,

    /// Why the address is in this state, in one word for scripts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Why the address is in this state, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Since when the address has been in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When the holder of the address was lost: its node is gone or NotReady, or the cloud no longer knows the address. The
    /// field stays for one minute after the holder is back. A new leader uses it to distinguish old losses from many at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Time>,

    /// Whether this object created the address, according to its status. The controller releases the address only if the
    /// provider also shows the object's mark on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
}

/// Where an address stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum AddressState {
    Attached,
    Moving,
    Unattached,
    Foreign,
    Conflict,
    Missing,
    Disabled,
    #[serde(other)]
    Unknown,
}

/// A machine, by the name Kubernetes knows and by the id the cloud knows. A name can come back on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The cloud's own id of the machine, in its shortest form that can't be mistaken: it stands in an object up to three
    /// times for each of 1,000 addresses.
    pub vm: String,

    /// The node that the machine backs or last backed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// Whether the machine had an address of its own before it was given ours, and so gets one back afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub had_ephemeral: Option<bool>,
}

/// The journal: everything that was begun and is not known to be finished. Written before the first cloud call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Moves {
    /// The journal's layout. A version that the controller does not know is left alone and reported.
    pub version: i64,

    /// The epoch of the leader that last wrote the journal.
    pub epoch: i64,

    /// The unfinished moves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub entries: Vec<Move>,
}

/// One unfinished move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    /// Names the move in logs.
    pub id: String,

    /// `Create` or `Release`; absent for a move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,

    /// The address; absent while one is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// The machine that held the address when the move began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Holder>,

    /// The machine that is to hold the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Holder>,

    /// `Voluntary` where the move could wait, otherwise `Urgent`.
    pub step: String,

    /// The tag or token by which a created address can be found again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,

    /// While an address is being created without a tag: those that existed before and that no object listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub before: Vec<String>,

    /// Addresses that may be the one whose creation had no certain outcome. They are never adopted or released by guess.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub candidates: Vec<String>,

    /// The epoch of the leader that began the move.
    pub epoch: i64,

    /// When the move began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
}

/// How many addresses there are and how many are where they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Addresses that should be on a node.
    pub desired: i64,

    /// Addresses that are on a node.
    pub attached: i64,
}

/// What is known of the DNS name that follows the addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// The record's full name.
    pub name: String,

    /// The values last published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub values: Vec<String>,

    /// When they were published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_at: Option<Time>,

    /// The owner id that our owner record carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}
