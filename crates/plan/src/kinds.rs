//! Kinds of Kubernetes objects that decisions depend on, and sets of them.

use std::fmt;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Nodes,
    Pods,
    Deployments,
    ReplicaSets,
    StatefulSets,
    DaemonSets,
    /// NetIPAllocations and FloatingIPPools. One that the controller has not read yet may own an address.
    Pools,
    /// FloatingIPPools and NodeDNSRecordSets. One that the controller has not read yet may own a DNS name.
    Names,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Nodes,
        Self::Pods,
        Self::Deployments,
        Self::ReplicaSets,
        Self::StatefulSets,
        Self::DaemonSets,
        Self::Pools,
        Self::Names,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Deployments => "Deployments",
            Self::ReplicaSets => "ReplicaSets",
            Self::StatefulSets => "StatefulSets",
            Self::DaemonSets => "DaemonSets",
            Self::Pools => "NetIPAllocations or FloatingIPPools",
            Self::Names => "FloatingIPPools or NodeDNSRecordSets",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Whether it contains a kind.
    pub fn has(self, kind: Kind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether it contains no kind.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set with one more kind.
    #[must_use]
    pub fn with(self, kind: Kind) -> Self {
        Self(self.0 | kind.bit())
    }

    /// The set without a kind.
    #[must_use]
    pub(crate) fn without(self, kind: Kind) -> Self {
        Self(self.0 & !kind.bit())
    }

    /// The kinds that are in both.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether a kind is in both.
    pub fn overlaps(self, other: Self) -> bool {
        !self.and(other).is_empty()
    }

    /// Adds kinds.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Kinds {
    /// The message while the controller can't read these kinds.
    pub(crate) fn unread_message(self) -> String {
        format!("the controller can't read {self} from the apiserver at present")
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<T: IntoIterator<Item = Kind>>(kinds: T) -> Self {
        kinds.into_iter().fold(Self::default(), Self::with)
    }
}

impl FromIterator<Self> for Kinds {
    fn from_iter<T: IntoIterator<Item = Self>>(sets: T) -> Self {
        sets.into_iter().fold(Self::default(), |mut all, set| {
            all.add(set);
            all
        })
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contained = Kind::ALL.into_iter().filter(|kind| self.has(*kind));
        f.write_str(&contained.map(Kind::name).collect::<Vec<_>>().join(", "))
    }
}
