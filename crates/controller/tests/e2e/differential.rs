//! The differential test compares the behaviour of FLIPOP's binary with that of ours.
//!
//! Both controllers run the scenarios of [`scenarios`] in parallel, each on its own control plane and with a new
//! account for every scenario. After each group of steps the test waits until nothing changes any more. Then it
//! compares where each address is, what the pool's status and the nodes' annotations report, and whether the pool's DNS
//! name has the address.
//!
//! Addresses of a pool are interchangeable, and neither controller promises which of them goes to which node: FLIPOP
//! starts at the end of the list, ours at its beginning. So the test records a story for each address, from its first
//! state to its last, and compares the sorted stories without the addresses.
//!
//! A scenario with a known difference has the reason in its outcome. The test also fails if a known difference no
//! longer occurs. `SCENARIO` runs only the scenarios whose name contains it.

mod scenarios;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::fake::ledger::CloudChange;

use crate::side::{Implementation, Side, ZONE, annotation};

/// Both controllers are settled if nothing has changed for this long. FLIPOP polls an action once a second.
const QUIET: Duration = Duration::from_secs(2);

/// How long the test waits at most until both agree: the machine may be slow.
const AGREED_WITHIN: Duration = Duration::from_secs(180);

/// How long the test waits at most for both to settle if they need not agree. Some never become quiet.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Short, because the test compares the results of actions and not their times.
const ACTION_TIME: Duration = Duration::from_millis(100);

/// A change to the cluster or to the account. Nodes and addresses are numbers. A node runs on the droplet with its
/// number.
#[derive(Clone, Debug)]
pub enum Step {
    /// Creates a node with the labels `pool=<this>` and `name=n<number>`.
    Node(u64, &'static str),
    /// Creates a droplet that is no node of the cluster.
    Droplet(u64),
    /// Deletes the node. Its droplet stays.
    NodeGone(u64),
    /// Deletes the node and its droplet.
    NodeDestroyed(u64),
    NodeReady(u64, bool),
    NodeLabel(u64, &'static str),
    /// Replaces the taints of the node.
    Taints(u64, Value),
    /// Creates a pod on a node, with the label `app=<this>`.
    Pod {
        name: &'static str,
        namespace: &'static str,
        app: &'static str,
        node: u64,
        is_ready: bool,
    },
    PodReady(&'static str, bool),
    PodGone(&'static str),
    /// Adds the address to the account.
    Address(u64),
    /// Adds the address to the account and assigns it to the droplet.
    Held(u64, u64),
    /// Creates a pool with this name and spec. `ips` are numbers.
    Pool(&'static str, Value),
    /// Changes a pool's spec.
    Edit(&'static str, Value),
    PoolGone(&'static str),
}

/// A setup, groups of steps, and the expected comparison.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub given: Vec<Step>,
    /// After each group of steps the test waits until both controllers have settled.
    pub when: Vec<Vec<Step>>,
    pub outcome: Outcome,
}

/// Whether both controllers must settle on the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Same,
    /// Ours differs on purpose, for this reason.
    Differs(&'static str),
}

/// The state of all addresses and pools at one moment, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    addresses: BTreeMap<String, String>,
    pools: Vec<String>,
}

/// One controller in one scenario.
struct Stage<'a> {
    side: &'a Side,
    number: u64,
    seen: Vec<Snapshot>,
}

impl Stage<'_> {
    fn address(&self, number: u64) -> String {
        format!("198.18.{}.{number}", self.number)
    }

    /// Unique over all scenarios, so that a controller can't confuse a droplet with one that it remembers.
    fn droplet(&self, number: u64) -> u64 {
        self.number * 1_000 + number
    }

    /// The DNS record name of a pool.
    fn record_name(&self, pool: &str) -> String {
        format!("{pool}-{}", self.number)
    }

    async fn carry_out(&self, step: &Step) {
        let side = self.side;
        match step {
            Step::Node(node, pool) => {
                let name = format!("n{node}");
                side.node(&name, self.droplet(*node), &[("pool", pool), ("name", &name)]).await;
            }
            Step::Droplet(droplet) => {
                side.cloud().with(|account| account.add_droplet(self.droplet(*droplet), "other", "nyc3"));
            }
            Step::NodeGone(node) => side.delete_node(&format!("n{node}")).await,
            Step::NodeDestroyed(node) => {
                side.cloud().with(|account| account.remove_droplet(self.droplet(*node)));
                side.delete_node(&format!("n{node}")).await;
            }
            Step::NodeReady(node, is_ready) => side.node_is_ready(&format!("n{node}"), *is_ready).await,
            Step::NodeLabel(node, pool) => {
                let labels = json!({"metadata": {"labels": {"pool": pool}}});
                side.edit_node(&format!("n{node}"), &labels).await;
            }
            Step::Taints(node, taints) => {
                side.edit_node(&format!("n{node}"), &json!({"spec": {"taints": taints}})).await;
            }
            Step::Pod { name, namespace, app, node, is_ready } => {
                side.pod(namespace, name, app, &format!("n{node}"), *is_ready).await;
            }
            Step::PodReady(name, is_ready) => side.pod_is_ready("default", name, *is_ready).await,
            Step::PodGone(name) => side.delete_pod("default", name).await,
            Step::Address(address) => {
                side.cloud().with(|account| account.add_reserved_ip(self.address(*address), "nyc3"));
            }
            Step::Held(address, node) => side.cloud().with(|account| {
                account.add_reserved_ip(self.address(*address), "nyc3");
                account.assign_now(&self.address(*address), self.droplet(*node));
            }),
            Step::Pool(name, spec) => {
                let mut spec = self.with_addresses(spec);
                spec["provider"] = "digitalocean".into();
                spec["region"] = "nyc3".into();
                spec["dnsRecordSet"] = json!({"recordName": self.record_name(name), "zone": ZONE, "ttl": 30});
                side.pool(name, spec).await;
            }
            Step::Edit(name, spec) => side.edit_pool(name, &self.with_addresses(spec)).await,
            Step::PoolGone(name) => side.delete_pool(name).await,
        }
    }

    fn with_addresses(&self, spec: &Value) -> Value {
        let mut spec = spec.clone();
        if let Some(ips) = spec.get_mut("ips").and_then(Value::as_array_mut) {
            ips.iter_mut().for_each(|ip| *ip = self.address(ip.as_u64().unwrap()).into());
        }
        spec
    }

    async fn observe(&self) -> Snapshot {
        let everything = ListParams::default();
        let pools = self.side.pools().list(&everything).await.unwrap().items;
        let nodes = self.side.nodes().list(&everything).await.unwrap().items;
        let backs = |droplet: u64| {
            let id = format!("digitalocean://{droplet}");
            nodes
                .iter()
                .find(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()) == Some(&id))
        };
        let mut names: BTreeSet<String> =
            self.side.cloud().with(|account| account.reserved_ips()).into_iter().collect();
        names.extend(nodes.iter().filter_map(|node| annotation(node).cloned()));
        names.extend(
            pools.iter().flat_map(|pool| pool.status.iter().flat_map(|status| status.ips.keys().cloned())),
        );

        let published = self.published(pools.iter().map(ResourceExt::name_any)).into_iter();
        let published: BTreeSet<String> = published.collect();

        let mut snapshot = Snapshot::default();
        for name in names {
            let mut story = match self.side.cloud().with(|account| account.holder(&name)) {
                Some(droplet) => backs(droplet).map_or_else(
                    || format!("on droplet {}", droplet % 1_000),
                    |node| format!("on {}", node.name_any()),
                ),
                None => "on nothing".to_owned(),
            };
            for pool in &pools {
                let Some(reported) = pool.status.as_ref().and_then(|status| status.ips.get(&name)) else {
                    continue;
                };
                let state = serde_json::to_value(reported.state).unwrap();
                let node = reported.node_name.as_deref().filter(|node| !node.is_empty()).unwrap_or("-");
                write!(story, ", {} says {} {node}", pool.name_any(), state.as_str().unwrap()).unwrap();
            }
            for node in nodes.iter().filter(|node| annotation(node) == Some(&name)) {
                write!(story, ", annotated {}", node.name_any()).unwrap();
            }
            if published.contains(&name) {
                story.push_str(", published");
            }
            snapshot.addresses.insert(name, story);
        }
        for pool in pools {
            let listed = pool.spec.ips.as_ref().map_or(0, Vec::len);
            let error = pool.status.as_ref().and_then(|status| status.error.as_deref()).unwrap_or_default();
            let is_wrong = if error.is_empty() { "" } else { ", and says what is wrong" };
            snapshot.pools.push(format!("{} lists {listed}{is_wrong}", pool.name_any()));
        }
        snapshot
    }

    /// The addresses in the DNS records of these pools.
    fn published(&self, pools: impl Iterator<Item = String>) -> BTreeSet<String> {
        let names: Vec<_> = pools.map(|pool| format!("{}.{ZONE}", self.record_name(&pool))).collect();
        let mut published = BTreeSet::new();
        for done in self.side.cloud().ledger().done {
            match done.change {
                CloudChange::RecordSet { name, value } if names.contains(&name) => {
                    _ = published.insert(value)
                }
                CloudChange::RecordRemoved { name, value } if names.contains(&name) => {
                    _ = published.remove(&value)
                }
                _ => {}
            }
        }
        published
    }

    /// The stories of all addresses and pools up to now. Their order does not depend on the addresses.
    fn stories(&self, now: &Snapshot) -> Vec<String> {
        let moments: Vec<&Snapshot> = self.seen.iter().chain([now]).collect();
        let names: BTreeSet<&String> =
            moments.iter().flat_map(|snapshot| snapshot.addresses.keys()).collect();
        let story = |name: &String| {
            let states = moments
                .iter()
                .map(|snapshot| snapshot.addresses.get(name).map_or("not there", String::as_str));
            states.collect::<Vec<_>>().join(" -> ")
        };
        let mut stories: Vec<_> = names.into_iter().map(story).collect();
        stories.sort();
        stories.extend(
            moments.iter().map(|snapshot| snapshot.pools.join("; ")).filter(|pools| !pools.is_empty()),
        );
        stories
    }

    /// If a pool of the scenario has a cool-off: the number of assignments, and whether the cool-off was kept.
    fn cool_off_kept(&self, scenario: &Scenario) -> Option<String> {
        let wanted = scenario.when.iter().flatten().find_map(|step| match step {
            Step::Pool(_, spec) => spec["assignmentCoolOffSeconds"].as_f64(),
            _ => None,
        })?;
        let prefix = format!("198.18.{}.", self.number);
        let assigned: Vec<_> = self
            .side
            .cloud()
            .ledger()
            .done
            .into_iter()
            .filter(|done| matches!(&done.change, CloudChange::Accepted { address, .. } if address.starts_with(&prefix)))
            .map(|done| done.at)
            .collect();
        let closest =
            assigned.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).fold(f64::INFINITY, f64::min);
        let is_kept = closest >= wanted;
        let closest = if is_kept { "well apart".to_owned() } else { format!("only {closest:.3} s apart") };
        Some(format!("{} assignments, {closest}", assigned.len()))
    }
}

/// Waits until nothing changes any more and, if both must agree, their stories are equal. Records the state of both.
async fn settled(flipop: &mut Stage<'_>, ours: &mut Stage<'_>, outcome: Outcome) {
    let began = Instant::now();
    let mut last = (Snapshot::default(), Snapshot::default());
    let mut since = Instant::now();
    loop {
        let seen = tokio::join!(flipop.observe(), ours.observe());
        if seen != last {
            (last, since) = (seen, Instant::now());
        }
        let is_busy = [&last.0, &last.1]
            .iter()
            .any(|snapshot| snapshot.addresses.values().any(|story| story.contains("in-progress")));
        let is_quiet = since.elapsed() >= QUIET && !is_busy;
        let is_as_listed = outcome != Outcome::Same || flipop.stories(&last.0) == ours.stories(&last.1);
        let longest = if outcome == Outcome::Same { AGREED_WITHIN } else { SETTLED_WITHIN };
        if (is_quiet && is_as_listed) || began.elapsed() > longest {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    flipop.seen.push(last.0);
    ours.seen.push(last.1);
}

/// Runs one scenario with both controllers. Returns the stories of FLIPOP and of ours.
async fn compare(scenario: &Scenario, number: u64, flipop: &Side, ours: &Side) -> (Vec<String>, Vec<String>) {
    let mut stages = [flipop, ours].map(|side| Stage { side, number, seen: Vec::new() });
    for stage in &mut stages {
        stage.side.fresh_account(ACTION_TIME);
    }
    let all = async |stages: &[Stage<'_>; 2], steps: &[Step]| {
        for step in steps {
            join_all(stages.iter().map(|stage| stage.carry_out(step))).await;
        }
    };
    all(&stages, &scenario.given).await;
    for stage in &mut stages {
        let snapshot = stage.observe().await;
        stage.seen.push(snapshot);
    }
    for steps in &scenario.when {
        all(&stages, steps).await;
        let [flipop, ours] = &mut stages;
        settled(flipop, ours, scenario.outcome).await;
    }
    let stories = stages.each_mut().map(|stage| {
        let last = stage.seen.pop().unwrap();
        let mut stories = stage.stories(&last);
        stories.extend(stage.cool_off_kept(scenario));
        stories
    });
    tokio::join!(flipop.clear(), ours.clear());
    stories.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_controllers_agree_except_for_listed_differences() {
    let (mut flipop, mut ours) =
        tokio::join!(Side::start(Implementation::Flipop, &[]), Side::start(Implementation::Ours, &[]));
    for side in [&flipop, &ours] {
        side.cloud().enforce_limits(false);
    }
    let only = std::env::var("SCENARIO").ok();
    let mut wrong = Vec::new();
    for (number, scenario) in scenarios::all().iter().enumerate() {
        if only.as_ref().is_some_and(|only| !scenario.name.contains(only.as_str())) {
            continue;
        }
        let (theirs, our) = compare(scenario, number as u64 + 1, &flipop, &ours).await;
        flipop.process.ensure_running().unwrap();
        ours.process.ensure_running().unwrap();
        let (result, is_listed) = match (scenario.outcome, theirs == our) {
            (Outcome::Same, true) => ("same".to_owned(), true),
            (Outcome::Differs(why), false) => (format!("differs: {why}"), true),
            (Outcome::Differs(_), true) => ("WRONG: the known difference no longer occurs".to_owned(), false),
            (Outcome::Same, false) => ("WRONG: unexpected difference".to_owned(), false),
        };
        println!("{:<82} {result}", scenario.name);
        if !is_listed {
            wrong.push(scenario.name);
        }
        if theirs != our {
            println!(
                "    FLIPOP: {}\n    ours:   {}",
                theirs.join("\n            "),
                our.join("\n            ")
            );
        }
    }
    assert_eq!(wrong, Vec::<&str>::new(), "{}", ours.process.log_tail());
}
