//! What the statuses share: the state of each address, the journal of unfinished moves, and the state of the DNS name.
//!
//! The schema does not restrict states to the values that this version knows. If an older controller reads a status of
//! a newer one, it reads an unknown state as `Unknown` and can still decode the object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the journal format that this code reads and writes.
pub const MOVES_VERSION: i64 = 1;

/// State of one address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressStatus {
    /// IP address.
    pub address: String,

    /// State of the address. `Attached`: on a node of this cluster. `Moving`: a move is in flight. `Unattached`: on no
    /// VM, or the object is being deleted. `Foreign`: on a VM that is not a node of this cluster. `Conflict`: an older
    /// object owns it. `Missing`: the provider does not know it. `Disabled`: beyond `desiredIPs`. `Unknown`: the
    /// controller could not read its state from the provider, or does not move it for another cause; see `reason`.
    #[schemars(with = "String")]
    pub state: AddressState,

    /// Node that holds the address. Present only in the state `Attached`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// Last VM of this cluster that held the address. The controller detaches an address only from this VM or from a VM
    /// that is a node, unless `policy.takeover` is `Always`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_holder: Option<Holder>,

    /// IDs of up to 4 VMs that held the address last and got an ephemeral address back when the controller detached it.
    /// Only for providers whose listings can be stale: a listing may not show that ephemeral address yet, so a new
    /// leader reads it here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub previous_holders: Vec<String>,

    /// Name in the public PTR record of the address, for providers that store it on the VM. The controller saves it
    /// before it detaches the address and sets it again when it attaches the address. Absent once that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub ptr_name: Option<String>,

    /// Why the address is in this state, as one word in CamelCase for scripts, such as `NoNode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Why the address is in this state, as a sentence. Absent while the address is settled or moving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// When the address entered this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When the VM that held the address was lost: its node was deleted or became NotReady, or the provider no longer
    /// knows the address. The field stays for one minute after the VM is back. A new leader uses it to distinguish
    /// earlier losses from many losses at once (`HoldersLost`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Time>,

    /// Whether the controller created the address for this object. This field alone never leads to a release: the
    /// provider must also show the mark of the object on the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
}

/// State of an address.
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

/// A VM, by its ID at the provider and by the name of its node. The ID is needed because a node name can be used again
/// by another VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// ID of the VM at the provider, in the shortest form that is unambiguous. An object contains it up to three times
    /// for each of 1,000 addresses, so its length matters.
    pub vm: String,

    /// Node that runs or last ran on the VM. Absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// Whether the VM had an ephemeral address that the controller removed to attach this address. If true, the
    /// controller restores an ephemeral address after it has detached this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub had_ephemeral: Option<bool>,
}

/// The journal: every move, creation and release that the controller has started and that may be unfinished. The
/// controller writes it before the first call to the provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Moves {
    /// Version of the journal format. If a controller does not know the version, it leaves the addresses alone and
    /// reports `NewerJournal`.
    pub version: i64,

    /// Epoch of the leader that last wrote the journal. Each new leader has a higher epoch than all earlier ones.
    pub epoch: i64,

    /// Unfinished moves, creations and releases, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub entries: Vec<Move>,
}

/// One unfinished move, creation or release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    /// ID of the move in log lines, such as `34.123.45.67-2`.
    pub id: String,

    /// Kind of the entry. `Create`: the controller is creating addresses. `Release`: it is releasing the address to the
    /// provider. Absent for a move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,

    /// Address that moves or is released. Absent for `Create`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// VM that held the address when the move started. Absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Holder>,

    /// VM that gets the address. Absent if the controller only detaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Holder>,

    /// `Voluntary`: the address was on a node that may still be alive, so the move could wait. `Urgent`: its node had
    /// failed or was deleted, or no VM held the address. Creations are `Voluntary`.
    pub step: String,

    /// For `Create`: mark that each new address carries, so that the controller finds it again after a crash. Absent if
    /// the provider or the credentials support no marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,

    /// For `Create`: addresses that existed before the request and so are not new. With `token`, those that already
    /// carried it; without, those that no object listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub before: Vec<String>,

    /// For `Create`: addresses that a request without an answer may have created (`AmbiguousCreation`), at most 50. The
    /// controller neither adopts nor releases any of them until a person decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub candidates: Vec<String>,

    /// Epoch of the leader that last wrote this entry.
    pub epoch: i64,

    /// When the controller started the move, creation or release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
}

/// Number of desired and attached addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Number of addresses that should be on a node, including those that are still to be created.
    pub desired: i64,

    /// Number of addresses in the state `Attached`.
    pub attached: i64,
}

/// The DNS name of an object and what the controller last published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// Full name of the record, such as `hello.example.com`.
    pub name: String,

    /// Addresses that the controller last published under the name, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub values: Vec<String>,

    /// When the controller published these values. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_at: Option<Time>,

    /// Owner ID in the mark of the records. Absent if nothing is published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}
