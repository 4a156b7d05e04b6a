//! What can happen in a run.
//!
//! These are only the words: `script` says when what happens, `cluster`, `vips`, `broken` and `run` let it happen.

use std::fmt;

use plan::vips::Role;

use crate::clouds::Cloud;

/// A process of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replica {
    /// Whichever leads.
    Leader,
    /// One that was chosen beforehand, whatever it does.
    Number(u64),
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Event {
    NotReady {
        cloud: Cloud,
        node: u64,
    },
    Ready {
        cloud: Cloud,
        node: u64,
    },
    /// No node of a cloud is Ready any more.
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
    /// The node and its machine are gone.
    Lost {
        cloud: Cloud,
        node: u64,
    },
    /// The node is gone, its machine runs on.
    Removed {
        cloud: Cloud,
        node: u64,
    },
    /// The node comes back, on another machine.
    Returns {
        cloud: Cloud,
        node: u64,
    },
    /// The matching pod on a node is gone, or there and Ready.
    Pod {
        node: u64,
        is_ready: bool,
    },
    /// Everything is repaired: every node is there and Ready, with its pod, every object is there, and people confirm what
    /// was lost and take back what they gave away.
    Mend,
    /// A person confirms that what is lost is lost.
    ConfirmLosses,
    /// A person puts an address on a machine of the cluster, or on one that is not in it.
    PersonMoves {
        cloud: Cloud,
        address: u64,
        node: Option<u64>,
    },
    /// A person puts an address of Google Cloud's on the second interface of a node's machine.
    SecondInterface {
        address: u64,
        node: u64,
    },
    /// A person lists one address more or less.
    Edit {
        cloud: Cloud,
        address: u64,
    },
    /// A person wants so many addresses.
    Desire {
        count: u64,
    },
    /// A tool puts the pool's list back to what it was at first.
    Unlist,
    /// A person lets the pool release what it created and does not need, lists an address of somebody else beyond the desired
    /// number, and forges a status that says that the pool created it.
    ForgeCreated,
    /// A person deletes an object, and makes it anew.
    Delete {
        cloud: Cloud,
    },
    Recreate {
        cloud: Cloud,
    },
    /// A person deletes the definition of its kind, and with it all of that kind.
    DeleteKind {
        cloud: Cloud,
    },
    DeleteLease,
    EditLease {
        edit: LeaseEdit,
    },
    Compact,
    /// A person takes the pool's name in DNS over.
    TakeName,
    /// Somebody else creates an address in our account.
    ForeignCreation,
    Crash {
        replica: Replica,
    },
    /// Whoever next asks for a change there dies of it.
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
    /// For a while one request in so many goes wrong.
    KubernetesStorm {
        one_in: u64,
        seconds: u64,
    },
    CloudStorm {
        one_in: u64,
        seconds: u64,
    },
    /// The next few requests of a kind meet this.
    CloudFault {
        cloud: Cloud,
        fault: CloudFault,
        times: u64,
    },
    /// The next change of an address at a cloud arrives so long after D.
    Overdue {
        cloud: Cloud,
        seconds: u64,
    },
    /// Something happens to Clusters and their VIPs.
    Vips(VipEvent),
    /// An object can't be decoded any more, or can again.
    Undecodable {
        what: Thing,
        is_broken: bool,
    },
    /// The apiserver refuses every change of an object, or takes them again.
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

/// Who is asked for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Asked {
    Cloud(Cloud),
    /// For any change but one of the Lease.
    Kubernetes,
    Lease,
}

/// What a person does to the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEdit {
    /// Nobody holds it.
    Empty,
    /// Another process does, or one that there is not.
    Give {
        /// Which.
        replica: Option<u64>,
    },
    /// It lasts for a second.
    Shorten,
    /// It carries a note.
    Annotate,
    /// It carries none, and not even ours.
    Strip,
}

/// What a cloud itself does wrong.
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
    /// A region does not answer, or answers late.
    Partial,
}

/// When a process dies of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Before it is sent.
    Before,
    /// Once it is sent.
    After,
}

/// An object that may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Thing {
    Node {
        cloud: Cloud,
        node: u64,
    },
    Pod {
        node: u64,
    },
    /// The object whose addresses are at a cloud.
    Owner {
        cloud: Cloud,
    },
    /// A name that holds addresses of nodes.
    Names,
    Cluster {
        cluster: u64,
    },
}

/// Something that people do to Clusters, pools and claims.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum VipEvent {
    Create {
        cluster: u64,
    },
    Delete {
        cluster: u64,
    },
    /// The Cluster is gone, and another one of the same name is there.
    Replace {
        cluster: u64,
    },
    Pause {
        cluster: u64,
        is_paused: bool,
    },
    /// A person sets an endpoint where there is none.
    SetEndpoint {
        cluster: u64,
    },
    /// Somebody makes a claim of their own under the name that is ours, or has done with it.
    Claim {
        cluster: u64,
        role: Role,
        is_there: bool,
    },
    AddPool {
        pool: usize,
    },
    /// A pool is deleted, if nobody has an address of it.
    RemovePool {
        pool: usize,
    },
    Grow {
        pool: usize,
    },
    /// A pool keeps only the addresses that are in use.
    Shrink {
        pool: usize,
    },
}
