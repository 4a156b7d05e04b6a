//! Every condition type, reason and Event reason: closed lists, each entry with what it means and what a person does
//! about it.
//!
//! Scripts and alerts of users compare these names, so a name never changes. A test writes the tables in `docs` from
//! these lists. This module never decides which reason an address has: `verdicts` and `vips` do. If the controller
//! can't act on an object at all, its `resources` and `index` modules choose the reason. The condition types of a
//! Cluster are in `vips::Role`, one for each role.

/// Defines an enum whose variants are names that users rely on, each with a row of a table.
macro_rules! closed {
    ($(#[$meta:meta])* $enum:ident: $row:ty { $($name:ident => $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "its row explains each one")]
        pub enum $enum { $($name),* }

        impl $enum {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name that users see.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Its row in the table of the docs.
            pub const fn row(self) -> $row {
                match self { $(Self::$name => $value),* }
            }
        }
    };
}

/// The types of an object's conditions. Exactly one of them is True. The order is that of urgency: the most urgent
/// address determines the conditions of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Everything is as it should be.
    Ready,
    /// Something is in flight or waits, and continues by itself.
    Reconciling,
    /// A person has to do something.
    Stalled,
}

impl ConditionType {
    /// All of them, the least urgent first.
    pub const ALL: [Self; 3] = [Self::Ready, Self::Reconciling, Self::Stalled];

    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

/// A row of the table of reasons.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRow {
    /// Which condition is True for this reason.
    pub condition: ConditionType,
    /// Whether this reason can appear in an object's status. It can't if the object can't be decoded, because the
    /// controller does not write the status of such an object.
    pub is_in_status: bool,
    /// What it means.
    pub meaning: &'static str,
    /// What a person does about it.
    pub remedy: &'static str,
}

const fn ready(meaning: &'static str, remedy: &'static str) -> ReasonRow {
    ReasonRow { condition: ConditionType::Ready, is_in_status: true, meaning, remedy }
}

const fn reconciling(meaning: &'static str, remedy: &'static str) -> ReasonRow {
    ReasonRow { condition: ConditionType::Reconciling, is_in_status: true, meaning, remedy }
}

const fn stalled(meaning: &'static str, remedy: &'static str) -> ReasonRow {
    ReasonRow { condition: ConditionType::Stalled, is_in_status: true, meaning, remedy }
}

const fn only_event(meaning: &'static str, remedy: &'static str) -> ReasonRow {
    ReasonRow { is_in_status: false, ..stalled(meaning, remedy) }
}

closed! {
    /// Why an object, one of its addresses or its DNS name is as it is: the reason of its conditions.
    Reason: ReasonRow {
        Settled => ready(
            "every address is on a node that should have it",
            "nothing",
        ),
        Disabled => ready(
            "the pool lists more addresses than `desiredIPs`, and does not need this one (FloatingIPPool)",
            "nothing, or raise `desiredIPs`",
        ),
        Deleted => ready(
            "the object is being deleted, and the controller leaves this address as it is",
            "nothing",
        ),
        Moving => reconciling(
            "a move is in flight",
            "wait; the cloud takes a few seconds for each move. If it takes more than a minute, look for the Event \
             `MoveFailed`, which contains the error of the cloud, and look at the operations of the cloud",
        ),
        Queued => reconciling(
            "the move of this address waits, for one of two reasons. Other moves go first: the controller moves addresses \
             off failed nodes first, and detaches at most 96 working addresses of an account at a time; this address \
             still works on its current VM. Or the leader is about to stop: the next leader starts the move within seconds",
            "wait. If the address stays `Queued`, check the addresses of the same account with the reason `Failed` \
             or `Moving`: the controller has to attach enough of them before it moves this one",
        ),
        NoNode => reconciling(
            "the address is attached to no VM, and no node can take it",
            "bring up or uncordon a matching node; [find out why no node can take it](#an-address-is-not-attached)",
        ),
        OtherRegion => reconciling(
            "the address is attached to no VM, and all matching nodes are in other regions; the message names the \
             regions",
            "bring up a matching node in the region of the address, or list an address in the region of the nodes",
        ),
        NoMatch => reconciling(
            "the address is on a node that should not have it, and no other node can take it. It still works \
             there. The message names what is wrong with the node",
            "correct what the message names, or bring up another matching node",
        ),
        Unknown => reconciling(
            "the controller does not move the address, because it lacks data: it could not read the address, the \
             cloud returned an incomplete answer, or the controller can't read objects that the move depends on, such \
             as nodes or pods. Or each node that could take the address may hold another address whose state is \
             unknown. The message names that address, and these nodes keep their labels",
            "[by the error in the message](runbooks/NetIPAllocationGCPAPIErrors.md#likely-causes)",
        ),
        Failed => reconciling(
            "the last call failed. The message contains the error of the cloud and the time of the next retry. If \
             a permission is missing, the controller waits at least 30 seconds before it retries",
            "do what the message of the condition says",
        ),
        Observing => reconciling(
            "`policy.mode` is `Observe`, and the controller would do something: see `status.proposed`",
            "set `policy.mode: Active` to let the controller do it",
        ),
        MaxConcurrentMoves => reconciling(
            "the number of voluntary moves in flight has reached `policy.maxConcurrentMoves`",
            "wait",
        ),
        MinHealthy => reconciling(
            "fewer addresses than `policy.minHealthy` are on healthy nodes, so a voluntary move waits",
            "fix the others, or lower the number",
        ),
        CoolOff => reconciling(
            "the last assignment was less than `assignmentCoolOffSeconds` ago (FloatingIPPool)",
            "wait",
        ),
        Creating => reconciling(
            "the controller is creating addresses (FloatingIPPool)",
            "wait",
        ),
        NotReleased => stalled(
            "`policy.releaseCreated` would release the address, but at the provider it has no tag, label or project \
             of this object (FloatingIPPool). `created: true` in the status is not enough",
            "check that the credentials can read the [tag, label or project](guides/floatingippool.md) that names this \
             object. If it is really absent, do one of these: release the address at the provider; set \
             `policy.releaseCreated: Never`; or, if this object did not create the address, add it to \
             the annotation `netinfra.darkbrains.com/not-created`",
        ),
        Releasing => reconciling(
            "the controller is releasing an address beyond `desiredIPs`, because of `policy.releaseCreated` \
             (FloatingIPPool)",
            "wait",
        ),
        HoldersLost => stalled(
            "within a minute, at least five nodes or VMs with addresses were lost, more than 30 % of those in the \
             account. The controller starts no moves and detaches nothing in the account. It still attaches \
             addresses that are attached to no VM and whose move has already started",
            "check whether the nodes are really gone. If they come back, the controller continues. If they are \
             gone, [confirm the loss](runbooks/NetIPAllocationCRDUnhealthy.md#likely-causes)",
        ),
        Foreign => stalled(
            "the address is on a VM that is not a node of this cluster, or something else uses it, such as a load \
             balancer",
            "find out what uses the address. Detach the address from that VM or resource, or set \
             `policy.takeover: Always`",
        ),
        Conflict => stalled(
            "an older object lists the same address; the message names it",
            "remove the address from one of the two",
        ),
        Missing => stalled(
            "the cloud does not know the address",
            "correct the list: a typo, or an address of another project, subscription, region or account than \
             that of the nodes. If the address was released, reserve it again if the cloud allows it. If its account \
             has changed together with that of the nodes, remove it from the object and add it again",
        ),
        UnsupportedAddress => stalled(
            "it is an IPv6 address at Google Cloud, where the controller attaches only IPv4 addresses. The \
             controller does not change it",
            "remove it from the list",
        ),
        NewerJournal => stalled(
            "a newer version of the controller started moves that this version can't read",
            "upgrade the controller again",
        ),
        Refused => stalled(
            "the controller can't act on the object, and the conditions of the object say why. If a \
             condition of the object has this reason itself, the installed CRD lacks the journal, \
             `lastHolder` or `created`, so the apiserver drops these fields; the log and the Event \
             `OutdatedCRD` name them",
            "`kubectl apply -f crds/`; the controller retries after a minute",
        ),
        JournalFull => reconciling(
            "the status holds at most 1,000 addresses and 1,000 unfinished moves, and has no room for another",
            "wait until moves have finished, or divide the addresses between two objects",
        ),
        Undecodable => only_event(
            "the controller can't decode the object, and does not act on it. It reports this by an Event only, \
             because it does not write the status of such an object",
            "[correct it](#an-object-cant-be-decoded)",
        ),
        NoNodes => stalled(
            "no matching node has a providerID of the object's provider, so the controller does not know the \
             account",
            "correct `nodeSelector` or `cloud.provider`, or bring up a node",
        ),
        UnsupportedNode => stalled(
            "no matching node has a VM that can get an address of this provider; the message names one of \
             the nodes and the reason",
            "use other VMs; at Azure, [single virtual machines or scale sets with Flexible \
             orchestration](guides/azure.md#which-address-fits-which-node)",
        ),
        InvalidAddress => stalled(
            "an entry is not an IP address, and the CRD did not reject it",
            "correct it; `kubectl apply -f crds/`",
        ),
        InvalidSelector => stalled(
            "`match.nodeLabel` or `match.podLabel` is not a valid selector; the message names the part \
             (FloatingIPPool, NodeDNSRecordSet)",
            "write it as for `kubectl -l`",
        ),
        UnsupportedProvider => stalled(
            "`provider` has no floating addresses (FloatingIPPool), or `dnsRecordSet.provider` publishes no DNS \
             names. In the second case the controller still moves the addresses of a pool",
            "use a provider that the message names. A DNS provider belongs in `dnsRecordSet.provider`",
        ),
        AmbiguousCreation => stalled(
            "a request to create an address got no answer; the message names the addresses that it may have \
             created (FloatingIPPool)",
            "add the addresses that belong to this pool to `spec.ips`, and the others to the annotation \
             `netinfra.darkbrains.com/not-created`",
        ),
        CreatedAddressesMax => stalled(
            "there are as many created addresses as `CREATED_ADDRESSES_MAX` allows, so this pool gets no new one. \
             Existing addresses stay (FloatingIPPool)",
            "release addresses that nobody needs, or [raise the \
             limit](guides/floatingippool.md#addresses-that-are-created)",
        ),
        UnlistedAddresses => stalled(
            "this pool needs more addresses. The controller creates none, because it already created some for \
             this pool that no object lists; the message names them (FloatingIPPool)",
            "if a tool removed the addresses from `spec.ips`, add them again and [configure the tool to ignore \
             `spec.ips`](guides/argo-cd.md). If you want new addresses instead, release these at the \
             provider. If you need these for something else, add them to the annotation \
             `netinfra.darkbrains.com/not-created`",
        ),
        NoTags => stalled(
            "the token may not use projects. Without them, the controller could lose track of a new address, or \
             can't find the addresses that it created in a project (FloatingIPPool)",
            "give the DigitalOcean token the scopes `project:read` and `project:create` (takes effect within ten minutes), or list addresses in `spec.ips`",
        ),
        RecordNotOurs => stalled(
            "the DNS name has records that the controller did not create, and not all of their values are \
             addresses of this object. The controller leaves them alone",
            "check the records. If the controller may replace them, set `dnsRecordSet.adopt: true`. \
             Otherwise choose another name",
        ),
        RecordOwnedByOther => stalled(
            "the owner mark of the DNS name has the owner ID of another controller. This controller does not change \
             the records, even with `dnsRecordSet.adopt: true`",
            "find that controller. If it no longer exists, [delete its owner \
             mark](#a-dns-name-is-wrong-or-out-of-date)",
        ),
        RecordConflict => stalled(
            "an older object uses the same DNS name; the message names it",
            "set a different `recordName` on one of the two objects",
        ),
        Published => ready(
            "the DNS name has the right addresses",
            "nothing",
        ),
        Publishing => reconciling(
            "the controller is reading or writing the DNS name",
            "wait",
        ),
        NothingToPublish => reconciling(
            "no address is on a matching node, and the DNS name has no records yet",
            "add a Ready node that matches the object. For a NodeDNSRecordSet, the node needs an address of the \
             `addressType`",
        ),
        RecordFailed => reconciling(
            "the controller could not read or write the DNS name. The message contains the error of the provider \
             and the time of the next retry",
            "follow the message",
        ),
        InvalidName => stalled(
            "`zone` or `recordName` contains characters that are not allowed in DNS names",
            "correct it; write names in other scripts in their `xn--` form",
        ),
        UnsupportedAddressType => stalled(
            "`addressType` is not a known type (NodeDNSRecordSet)",
            "use a type that the message names",
        ),
        LastAddressesKept => reconciling(
            "no address is on a matching node. The DNS name keeps its previous addresses, because the controller does \
             not remove the last addresses of a name",
            "add a Ready node that matches the object. For a NodeDNSRecordSet, the node needs an address of the \
             `addressType`",
        ),
        NoRegion => stalled(
            "the controller has to create addresses, but the object has no region (FloatingIPPool)",
            "set `spec.region`",
        ),
    }
}

impl Reason {
    /// Which condition is True for this reason.
    pub const fn condition(self) -> ConditionType {
        self.row().condition
    }
}

/// A row of the table of Events.
#[derive(Clone, Copy, Debug)]
pub struct EventRow {
    /// Whether its type is Warning instead of Normal.
    pub is_warning: bool,
    /// What it is about.
    pub regarding: &'static str,
    /// What happened.
    pub meaning: &'static str,
}

const fn normal(regarding: &'static str, meaning: &'static str) -> EventRow {
    EventRow { is_warning: false, regarding, meaning }
}

const fn warning(regarding: &'static str, meaning: &'static str) -> EventRow {
    EventRow { is_warning: true, regarding, meaning }
}

closed! {
    /// Reasons of Events that report a change or an error. Events that report a condition have a [`Reason`], and those
    /// about a VIP a [`VipReason`].
    EventReason: EventRow {
        Moving => normal("object", "a move starts: from where, to where. Or the controller repeats a change that failed"),
        Attached => normal("object", "the controller attached an address to a node"),
        AddressAttached => normal("node", "the controller attached an address to this node"),
        AddressDetached => normal("node", "the controller detached an address from this node"),
        MoveFailed => warning("object", "the provider refused a call or did not answer; the Event's message contains the error"),
        MoveGivenUp => normal("object", "the controller abandoned a move because something changed, for example the target can no longer take the address; it then plans again"),
        NoOwnAddress => warning("object", "the controller could not restore the ephemeral address of a VM: assign one by hand"),
        PodEvicted => normal("object", "the controller evicted a pod from a node without an address"),
        PodNotEvicted => warning("object", "the controller could not evict a pod, for example because of a PodDisruptionBudget"),
        Published => normal("object", "the controller wrote the records of the DNS name; the Event's message lists their values"),
        Unpublished => normal("object", "the object is being deleted with `policy.onDelete: Detach`, so the controller deleted the records of its \
                     DNS name"),
        RecordFailed => warning("object", "the controller could not read or write the DNS name; the Event's message contains the error"),
        OutdatedCRD => warning("object", "the CRD in the cluster drops status fields; the Event's message names them"),
        WriteRefused => warning("object, node, Cluster", "the apiserver has refused an update several times; [what to do](#an-object-cant-be-written)"),
        Undecodable => warning("object, node, Cluster", "the controller can't decode the object and does not act on it; [what to \
                     do](#an-object-cant-be-decoded)"),
        DeprecatedField => warning("object", "`deploymentRef` is deprecated; the Event's message names the field that replaces it"),
    }
}

closed! {
    /// Why a VIP of a Cluster is as it is. Its row is what a person does about it; none for a reason that no user sees.
    VipReason: Option<&'static str> {
        Assigned => Some("nothing, unless the message reports that the ClusterClass has no variable `clusterVip`. Then add it if a patch \
                     needs the VIP"),
        Allocating => Some("the Cluster has waited for an address for a minute. Check that the pods of the IPAM provider run, and \
                     look at the conditions of the claim: `kubectl describe ipaddressclaims`"),
        Releasing => Some("the Cluster has waited for an address for a minute, and its claim got none. So the controller \
                     deletes the claim and creates one for another pool, which the message names. Wait. If the old \
                     pool has `addressReuseGracePeriodSeconds`, the deletion can take that long, even though the \
                     claim has no address. Do not set that field on pools that may be full while others have free \
                     addresses"),
        PoolExhausted => Some("[add addresses, or another pool](../runbooks/CAPIVIPPoolExhausted.md)"),
        NoPool => Some("label a pool with the class of the Cluster and the role"),
        NoClass => Some("the ClusterClass that the Cluster names does not exist in the namespace of the reference. Create it, or correct the \
                     name"),
        ClaimNotOurs => Some("the `IPAddressClaim` that the controller needs already exists and has another owner. If that is a \
                     deleted Cluster of the same name, wait: its claim disappears after the pool's \
                     `addressReuseGracePeriodSeconds`. Otherwise delete the claim"),
        InUse => Some("the pool assigned an address that is already a VIP of another Cluster. If that Cluster is \
                     being deleted, wait: its machines may still use the address. If the VIP was set by hand, add \
                     it to `spec.excludedAddresses` of the pool and delete the claim that the message names. The \
                     next claim gets another address"),
        Failed => Some("the message contains the error of the API server. The controller retries at least every 30 \
                     seconds"),
        Manual => None,
        Unknown => None,
        Paused => None,
        Leaving => None,
        NotWanted => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::path::Path;

    /// Compares the generated part of a page with a table. With `REGENERATE` set, as in `just generate`, writes it instead.
    fn check(page: &str, table: &str, rows: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        let begin = format!("<!-- generated from crates/plan by `just generate`: {table} -->\n");
        let end = "<!-- end of the generated table -->";
        let (before, rest) = text.split_once(&begin).expect("the page has the begin of the table");
        let (found, after) = rest.split_once(end).expect("the page has the end of the table");
        if std::env::var_os("REGENERATE").is_some() {
            std::fs::write(&path, format!("{before}{begin}{rows}{end}{after}")).unwrap();
        } else {
            assert!(found == rows, "docs/{page} is out of date: run `just generate`");
        }
    }

    #[test]
    fn n21_f18_the_tables_of_reasons_and_events_are_generated() {
        let mut rows = String::from("| reason | condition | meaning | what to do |\n|---|---|---|---|\n");
        for reason in Reason::ALL {
            let (name, ReasonRow { condition, is_in_status, meaning, remedy }) =
                (reason.name(), reason.row());
            let condition = if is_in_status { condition.name() } else { "none, only an Event" };
            writeln!(rows, "| `{name}` | {condition} | {meaning} | {remedy} |").unwrap();
        }
        check("troubleshooting.md", "reasons", &rows);

        let mut rows = String::from("| reason | type | on | what happened |\n|---|---|---|---|\n");
        for reason in EventReason::ALL {
            let (name, EventRow { is_warning, regarding, meaning }) = (reason.name(), reason.row());
            let kind = if is_warning { "Warning" } else { "Normal" };
            writeln!(rows, "| `{name}` | {kind} | {regarding} | {meaning} |").unwrap();
        }
        check("troubleshooting.md", "Events", &rows);
    }

    /// The rows of a NetIPAllocation's reasons with this condition. If only other kinds have a reason, its text names
    /// these kinds.
    fn rows_for_runbook(condition: ConditionType) -> String {
        let mut rows = String::from("| reason | meaning | what to do |\n|---|---|---|\n");
        for reason in Reason::ALL {
            let row = reason.row();
            let is_of_other_kinds =
                row.meaning.contains("(FloatingIPPool") || row.meaning.contains("(NodeDNSRecordSet");
            if row.condition != condition || !row.is_in_status || is_of_other_kinds {
                continue;
            }
            // The links in the list are relative to `docs`, the folder above the runbooks.
            let remedy = row.remedy.replace("](#", "](../troubleshooting.md#");
            let remedy = remedy.replace("](guides/", "](../guides/").replace("](runbooks/", "](");
            writeln!(rows, "| `{}` | {} | {remedy} |", reason.name(), row.meaning).unwrap();
        }
        rows
    }

    #[test]
    fn the_tables_of_reasons_in_the_runbook_are_generated() {
        for condition in [ConditionType::Stalled, ConditionType::Reconciling] {
            let table = format!("reasons of {}", condition.name());
            check("runbooks/NetIPAllocationCRDUnhealthy.md", &table, &rows_for_runbook(condition));
        }
    }

    #[test]
    fn the_table_of_vip_reasons_is_generated() {
        let mut rows = String::from("| reason | what to do |\n|---|---|\n");
        for reason in VipReason::ALL {
            let Some(remedy) = reason.row() else { continue };
            writeln!(rows, "| `{}` | {remedy} |", reason.name()).unwrap();
        }
        check("guides/cluster-api.md", "reasons of VIPs", &rows);
    }

    #[test]
    fn no_reason_is_listed_twice() {
        let names: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
