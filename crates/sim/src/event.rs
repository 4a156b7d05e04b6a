//! The events of a run.
//!
//! This file has only the types. `script` chooses events and their times; `cluster`, `vips`, `broken` and `run` apply
//! them.

use std::fmt;

use plan::vips::Role;

use crate::clouds::Cloud;

/// A replica of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replica {
    /// The replica that leads when the event happens.
    Leader,
    /// A fixed replica.
    Number(u64),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of variants and fields say it all")]
pub enum Event {
    NotReady {
        cloud: Cloud,
        node: u64,
    },
    Ready {
        cloud: Cloud,
        node: u64,
    },
    /// All nodes of a cloud become NotReady.
    Blackout {
        cloud: Cloud,
    },
    Cordon {
        cloud: Cloud,
        node: u64,
    },
    Uncordon {
        cloud: Cloud,
        node: u64,
    },
    /// The node and its VM are deleted.
    Lost {
        cloud: Cloud,
        node: u64,
    },
    /// The node is deleted, but its VM keeps running.
    Removed {
        cloud: Cloud,
        node: u64,
    },
    /// The node is created again with a new VM.
    Returns {
        cloud: Cloud,
        node: u64,
    },
    /// The matching pod on a node is deleted, or created and Ready.
    Pod {
        node: u64,
        is_ready: bool,
    },
    /// People repair everything: all nodes exist and are Ready, with their pods, and all objects exist. People confirm
    /// all losses, and take back the addresses that they moved to VMs outside the cluster.
    Mend,
    /// A person confirms the losses so far.
    ConfirmLosses,
    /// A person attaches an address to the VM of a node, or to a VM outside the cluster.
    PersonMoves {
        cloud: Cloud,
        address: u64,
        node: Option<u64>,
    },
    /// A person attaches an address to the second interface of a node's VM at Google Cloud.
    SecondInterface {
        address: u64,
        node: u64,
    },
    /// A person adds an address to an object's list, or removes it if it is listed.
    Edit {
        cloud: Cloud,
        address: u64,
    },
    /// A person sets `desiredIPs`.
    Desire {
        count: u64,
    },
    /// A tool resets the pool's list to its initial content.
    Unlist,
    /// A person tries to make the controller release somebody else's address. The person adds it to a pool that already
    /// lists `desiredIPs` addresses, forges a status that says that the pool created it, and sets
    /// `policy.releaseCreated: WhenUnneeded`.
    ForgeCreated,
    /// A person deletes an object.
    Delete {
        cloud: Cloud,
    },
    /// A person creates the missing objects of a cloud, and their CRD if it is missing.
    Recreate {
        cloud: Cloud,
    },
    /// A person deletes the CRD of the cloud's objects, and with it all objects of that kind.
    DeleteKind {
        cloud: Cloud,
    },
    DeleteLease,
    EditLease {
        edit: LeaseEdit,
    },
    Compact,
    /// A person takes over the pool's DNS name.
    TakeName,
    /// Somebody else creates an address in the same account.
    ForeignCreation,
    Crash {
        replica: Replica,
    },
    /// The process that sends the next change to `asked` crashes.
    CrashAtCall {
        asked: Asked,
        death: Death,
    },
    Terminate {
        replica: Replica,
    },
    Stop {
        replica: Replica,
        seconds: u64,
    },
    ClockJump {
        replica: Replica,
        milliseconds: i64,
    },
    /// For a while one request in `one_in` to Kubernetes fails.
    KubernetesStorm {
        one_in: u64,
        seconds: u64,
    },
    /// All watches are silent for a while, and then send all events at once. Their connections stay alive, as behind a
    /// proxy that forwards nothing.
    Silence {
        seconds: u64,
    },
    /// The apiserver refuses all lists and watches of a kind for a while.
    Unreadable {
        plural: &'static str,
        seconds: u64,
    },
    /// The next list of a kind is `seconds` old, as if etcd had been restored from a copy.
    StaleList {
        plural: &'static str,
        seconds: u64,
    },
    /// For a while one request in `one_in` to the clouds fails.
    CloudStorm {
        one_in: u64,
        seconds: u64,
    },
    /// The next few requests to a cloud meet a fault of the cloud.
    CloudFault {
        cloud: Cloud,
        fault: CloudFault,
        times: u64,
    },
    /// The next change of an address at a cloud arrives `seconds` after D (`options::TAKEOVER`) has passed.
    Overdue {
        cloud: Cloud,
        seconds: u64,
    },
    /// An event of Clusters and their VIPs.
    Vips(VipEvent),
    /// An object becomes undecodable, or is repaired.
    Undecodable {
        what: Thing,
        is_broken: bool,
    },
    /// The apiserver rejects all changes of an object, or accepts them again.
    Refuse {
        what: Thing,
        is_refused: bool,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Where a change is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Asked {
    Cloud(Cloud),
    /// The apiserver, for changes of all objects except the Lease.
    Kubernetes,
    Lease,
}

/// What a person does to the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEdit {
    /// Removes the holder.
    Empty,
    /// Sets the holder to another process, or to one that does not exist.
    Give {
        /// The replica; None for a process that does not exist.
        replica: Option<u64>,
    },
    /// Sets the lease duration to one second.
    Shorten,
    /// Adds an annotation.
    Annotate,
    /// Removes all annotations, including the controller's.
    Strip,
}

/// A fault of a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CloudFault {
    LoseReply,
    Truncate,
    RateLimited,
    Forbidden,
    FailLate,
    Overtake,
    Slow,
    /// Listings are partial, truncated or stale, depending on the cloud.
    Partial,
}

/// When a process crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Before it sends the request.
    Before,
    /// After it has sent the request.
    After,
}

/// An object that can become undecodable or read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names of variants and fields say it all")]
pub enum Thing {
    Node {
        cloud: Cloud,
        node: u64,
    },
    Pod {
        node: u64,
    },
    /// An object that lists addresses at a cloud.
    Owner {
        cloud: Cloud,
    },
    /// A NodeDNSRecordSet.
    Names,
    Cluster {
        cluster: u64,
    },
}

/// A change of Clusters, IPAM pools or claims by people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of variants and fields say it all")]
pub enum VipEvent {
    Create {
        cluster: u64,
    },
    Delete {
        cluster: u64,
    },
    /// A Cluster is deleted and immediately created again with the same name.
    Replace {
        cluster: u64,
    },
    Pause {
        cluster: u64,
        is_paused: bool,
    },
    /// A person sets the endpoint of a Cluster that has none.
    SetEndpoint {
        cluster: u64,
    },
    /// A person creates a claim with the name that the controller uses, or deletes it.
    Claim {
        cluster: u64,
        role: Role,
        is_there: bool,
    },
    AddPool {
        pool: usize,
    },
    /// A person deletes a pool, if none of its addresses is in use.
    RemovePool {
        pool: usize,
    },
    Grow {
        pool: usize,
    },
    /// A person removes from a pool all addresses that are not in use.
    Shrink {
        pool: usize,
    },
}
