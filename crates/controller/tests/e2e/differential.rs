//! The differential test: what FLIPOP's own binary makes of a cluster, and what ours makes of the same one.
//!
//! Both controllers go through the scenarios of [`scenarios`] in step, each on a control plane of its own and on an
//! account that is fresh for every scenario. After each step both are waited for until nothing changes any more, and
//! what they settled on is compared: where each address is, what the pool's status and the nodes' annotations say of it,
//! and whether the pool's name resolves to it.
//!
//! Addresses of a pool are interchangeable, and which of them goes to which node is nowhere promised: FLIPOP begins at the
//! end of the list, ours at its beginning. So each address has a story, from where it was at first to where it was
//! last, and the stories of all addresses are compared without the addresses' names.
//!
//! A scenario that ends differently is listed with the reason; a listed difference that is gone fails the test as well.
//! `SCENARIO` runs only those whose name contains it.

mod scenarios;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::fake::ledger::Deed;

use crate::side::{Side, Who, ZONE, annotation};

/// Nothing has changed for so long: FLIPOP asks for an action's end once a second.
const QUIET: Duration = Duration::from_secs(2);

/// How long two that should be equal may still differ once they are quiet: the machine may be slow.
const PATIENCE: Duration = Duration::from_secs(15);

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Short, because what is compared is where an action ends and not when.
const ACTION_TIME: Duration = Duration::from_millis(100);

/// What a cluster and an account go through. Nodes and addresses are numbers; droplet and node of a number belong together.
#[derive(Clone, Debug)]
pub enum Step {
    /// A node with the labels `pool=<this>` and `name=n<number>`.
    Node(u64, &'static str),
    /// A droplet of the account that is no node of the cluster.
    Droplet(u64),
    /// The node is deleted, the droplet stays.
    NodeGone(u64),
    /// The node is deleted, and its droplet destroyed.
    NodeDestroyed(u64),
    NodeReady(u64, bool),
    NodeLabel(u64, &'static str),
    /// The node has exactly these taints.
    Taints(u64, Value),
    /// A pod on a node, in a namespace, with the label `app=<this>`; it is Ready or not.
    Pod {
        name: &'static str,
        namespace: &'static str,
        app: &'static str,
        node: u64,
        is_ready: bool,
    },
    PodReady(&'static str, bool),
    PodGone(&'static str),
    /// The account has the address.
    Address(u64),
    /// The account has the address, and it is on the droplet.
    Held(u64, u64),
    /// A pool of this name and spec; `ips` are numbers.
    Pool(&'static str, Value),
    /// A change of a pool's spec.
    Edit(&'static str, Value),
    PoolGone(&'static str),
}

/// A name, a setup, steps, and whether both settle on the same.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub given: Vec<Step>,
    /// Each group is done at once; then both are waited for.
    pub when: Vec<Vec<Step>>,
    pub outcome: Outcome,
}

/// How the two should compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Same,
    /// Ours is different on purpose; why.
    Differs(&'static str),
}

/// What is seen of all addresses and pools at one moment, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sight {
    addresses: BTreeMap<String, String>,
    pools: Vec<String>,
}

/// One controller in one scenario.
struct Stage<'a> {
    side: &'a Side,
    number: u64,
    seen: Vec<Sight>,
}

impl Stage<'_> {
    fn address(&self, number: u64) -> String {
        format!("198.18.{}.{number}", self.number)
    }

    /// Unique over all scenarios, so that nothing that a controller remembers of a droplet is true of another.
    fn droplet(&self, number: u64) -> u64 {
        self.number * 1_000 + number
    }

    /// The name that a pool's addresses are published under.
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

    async fn look(&self) -> Sight {
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

        let mut sight = Sight::default();
        for name in names {
            let mut story = match self.side.cloud().with(|account| account.holder(&name)) {
                Some(droplet) => backs(droplet).map_or_else(
                    || format!("on droplet {}", droplet % 1_000),
                    |node| format!("on {}", node.name_any()),
                ),
                None => "on nothing".to_owned(),
            };
            for pool in &pools {
                let Some(said) = pool.status.as_ref().and_then(|status| status.ips.get(&name)) else {
                    continue;
                };
                let state = serde_json::to_value(said.state).unwrap();
                let node = said.node_name.as_deref().filter(|node| !node.is_empty()).unwrap_or("-");
                write!(story, ", {} says {} {node}", pool.name_any(), state.as_str().unwrap()).unwrap();
            }
            for node in nodes.iter().filter(|node| annotation(node) == Some(&name)) {
                write!(story, ", annotated {}", node.name_any()).unwrap();
            }
            if published.contains(&name) {
                story.push_str(", published");
            }
            sight.addresses.insert(name, story);
        }
        for pool in pools {
            let listed = pool.spec.ips.as_ref().map_or(0, Vec::len);
            let error = pool.status.as_ref().and_then(|status| status.error.as_deref()).unwrap_or_default();
            let is_wrong = if error.is_empty() { "" } else { ", and says what is wrong" };
            sight.pools.push(format!("{} lists {listed}{is_wrong}", pool.name_any()));
        }
        sight
    }

    /// The addresses that the names of these pools resolve to.
    fn published(&self, pools: impl Iterator<Item = String>) -> BTreeSet<String> {
        let names: Vec<_> = pools.map(|pool| format!("{}.{ZONE}", self.record_name(&pool))).collect();
        let mut published = BTreeSet::new();
        for done in self.side.cloud().ledger().done {
            match done.deed {
                Deed::RecordSet { name, value } if names.contains(&name) => _ = published.insert(value),
                Deed::RecordRemoved { name, value } if names.contains(&name) => _ = published.remove(&value),
                _ => {}
            }
        }
        published
    }

    /// The stories of all addresses and pools up to now, in an order that does not depend on their names.
    fn stories(&self, now: &Sight) -> Vec<String> {
        let moments: Vec<&Sight> = self.seen.iter().chain([now]).collect();
        let names: BTreeSet<&String> = moments.iter().flat_map(|sight| sight.addresses.keys()).collect();
        let story = |name: &String| {
            let told =
                moments.iter().map(|sight| sight.addresses.get(name).map_or("not there", String::as_str));
            told.collect::<Vec<_>>().join(" -> ")
        };
        let mut stories: Vec<_> = names.into_iter().map(story).collect();
        stories.sort();
        stories.extend(moments.iter().map(|sight| sight.pools.join("; ")).filter(|pools| !pools.is_empty()));
        stories
    }

    /// Whether all assignments keep a distance, where the pool asks for one.
    fn keeps_cool(&self, scenario: &Scenario) -> Option<String> {
        let wanted = scenario.when.iter().flatten().find_map(|step| match step {
            Step::Pool(_, spec) => spec["assignmentCoolOffSeconds"].as_f64(),
            _ => None,
        })?;
        let prefix = format!("198.18.{}.", self.number);
        let told: Vec<_> = self
            .side
            .cloud()
            .ledger()
            .done
            .into_iter()
            .filter(|done| matches!(&done.deed, Deed::Told { address, .. } if address.starts_with(&prefix)))
            .map(|done| done.at)
            .collect();
        let closest =
            told.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).fold(f64::INFINITY, f64::min);
        let is_kept = closest >= wanted;
        let closest = if is_kept { "well apart".to_owned() } else { format!("only {closest:.3} s apart") };
        Some(format!("{} assignments, {closest}", told.len()))
    }
}

/// Waits until both are quiet, and longer where they should be equal and are not. Tells what both have settled on.
async fn settled(flipop: &mut Stage<'_>, ours: &mut Stage<'_>, outcome: Outcome) {
    let began = Instant::now();
    let mut last = (Sight::default(), Sight::default());
    let mut since = Instant::now();
    loop {
        let seen = tokio::join!(flipop.look(), ours.look());
        if seen != last {
            (last, since) = (seen, Instant::now());
        }
        let is_busy = [&last.0, &last.1]
            .iter()
            .any(|sight| sight.addresses.values().any(|story| story.contains("in-progress")));
        let is_quiet = since.elapsed() >= QUIET && !is_busy;
        let is_as_listed = outcome != Outcome::Same || flipop.stories(&last.0) == ours.stories(&last.1);
        if (is_quiet && is_as_listed) || began.elapsed() > PATIENCE {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    flipop.seen.push(last.0);
    ours.seen.push(last.1);
}

/// Takes both controllers through one scenario, and gives the stories of both.
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
        let sight = stage.look().await;
        stage.seen.push(sight);
    }
    for steps in &scenario.when {
        all(&stages, steps).await;
        let [flipop, ours] = &mut stages;
        settled(flipop, ours, scenario.outcome).await;
    }
    let told = stages.each_mut().map(|stage| {
        let last = stage.seen.pop().unwrap();
        let mut stories = stage.stories(&last);
        stories.extend(stage.keeps_cool(scenario));
        stories
    });
    tokio::join!(flipop.clear(), ours.clear());
    told.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn differential_both_controllers_settle_on_the_same_in_every_scenario_but_for_listed_differences() {
    let (mut flipop, mut ours) = tokio::join!(Side::start(Who::Flipop, &[]), Side::start(Who::Ours, &[]));
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
        let (said, is_listed) = match (scenario.outcome, theirs == our) {
            (Outcome::Same, true) => ("same".to_owned(), true),
            (Outcome::Differs(why), false) => (format!("differs: {why}"), true),
            (Outcome::Differs(_), true) => ("WRONG: the listed difference is gone".to_owned(), false),
            (Outcome::Same, false) => ("WRONG: not the same".to_owned(), false),
        };
        println!("{:<82} {said}", scenario.name);
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
