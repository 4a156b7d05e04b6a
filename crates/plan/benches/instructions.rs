//! Counts the instructions of one plan for growing clusters: `just bench instructions`.
//!
//! Callgrind counts them, so the load of the machine does not matter. This program starts itself under valgrind once
//! for each size. A cluster of N nodes has N / 15 pools and 2 N / 3 addresses. Nodes are in three zones, and each pool
//! spreads its addresses over them and needs Ready pods. Nine of ten pools select the nodes of their own team, the
//! others select every node. All addresses are on nodes except for one in a hundred, which waits because no node is in
//! its region. Before the measured plan one node becomes NotReady, so its address moves.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "this is a measurement"
)]

use std::process::Command;
use std::time::Duration;

use plan::{
    Account, Address, Epoch, Fact, Holding, Kind, Kinds, Node, NodeName, Plan, Pods, Policy, Pool, PoolKey,
    Provider, Readiness, Scope, Spread, Tenancy, Tick, Timestamp, VmId, World, plan,
};

const SIZES: [usize; 4] = [1_000, 5_000, 15_000, 65_000];
const NODES_OF_A_POOL: usize = 15;
const ADDRESSES_OF_A_POOL: usize = 10;

/// The largest slope in a log-log plot. 1 means that the instructions grow linearly.
const SLOPE_MAX: f64 = 1.05;

fn now() -> Timestamp {
    Timestamp::constant(1_800_000_000, 0)
}

fn scope() -> Scope {
    Scope { provider: Provider::DigitalOcean, account: "demo".into() }
}

fn name(number: usize) -> NodeName {
    format!("node-{number:06}").into()
}

fn vm(number: usize) -> VmId {
    format!("{}", 1_000_000 + number).into()
}

fn address(number: usize) -> Address {
    format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256).parse().unwrap()
}

fn node(number: usize, readiness: Readiness) -> Node {
    Node {
        region: Some("nyc3".into()),
        zone: Some(["a", "b", "c"][number % 3].into()),
        ..Node::new(Some((scope(), vm(number))), readiness)
    }
}

fn cluster(nodes: usize) -> World {
    let pools = nodes / NODES_OF_A_POOL;
    let mut world = World::default();
    world.epoch = Epoch(1);
    world.accounts.insert(scope(), Account { as_of: Tick(1), can_tag: true });
    for number in 0..nodes {
        world.set_node(&name(number), node(number, Readiness::Ready));
    }
    for pool in 0..pools {
        let key = PoolKey {
            kind: "FloatingIPPool",
            namespace: "team".into(),
            name: format!("pool-{pool:05}").into(),
        };
        let addresses = (0..ADDRESSES_OF_A_POOL).map(|at| address(pool * ADDRESSES_OF_A_POOL + at));
        let policy =
            Policy { spread: Spread::Zone, ..Policy::defaults(Duration::from_secs(60), Duration::ZERO) };
        world.set_pool(Pool {
            tenancy: Tenancy::UntilDisplaced { needs_pods: true },
            pods_from: Kinds::default().with(Kind::Pods),
            policy,
            ..Pool::new(key.clone(), scope(), addresses.collect())
        });
        let team = (pool..nodes).step_by(pools);
        let every_node = 0..if pool % 10 == 0 { nodes } else { 0 };
        for number in team.chain(every_node) {
            world.set_member(&key, &name(number), Some(Pods::Ready));
        }
    }
    for number in 0..pools * ADDRESSES_OF_A_POOL {
        let (pool, position) = (number / ADDRESSES_OF_A_POOL, number % ADDRESSES_OF_A_POOL);
        let (holding, region) = match number % 100 {
            99 => (Holding::Free, "elsewhere"),
            _ => (Holding::By(vm(pool + position * pools)), "nyc3"),
        };
        let fact = Fact { region: Some(region.into()), ..Fact::new(holding, Tick(1)) };
        world.set_fact(&scope(), address(number), fact);
    }
    world
}

/// What callgrind counts.
#[inline(never)]
fn measured(world: &World) -> Plan {
    plan(world, now())
}

/// Plans for one cluster. Runs under valgrind.
fn plan_once(nodes: usize) {
    let mut world = cluster(nodes);
    // The first plan fills the world's caches.
    assert!(plan(&world, now()).steps.is_empty(), "all addresses that can be on a node are on one");
    let long_ago = now().checked_sub(Duration::from_secs(3_600)).unwrap();
    world.set_node(&name(7), node(7, Readiness::NotReadySince(long_ago)));
    assert_eq!(measured(&world).steps.len(), 1);
}

/// The instructions of one plan.
fn count(nodes: usize) -> f64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--toggle-collect=*instructions::measured*"]);
    valgrind.arg("--callgrind-out-file=/dev/null").arg(std::env::current_exe().unwrap());
    let ended = valgrind.arg(nodes.to_string()).output();
    let ended = ended.unwrap_or_else(|error| panic!("valgrind did not start; install it: {error}"));
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|_| ended.status.success()).unwrap_or_else(|| panic!("{log}"))
}

/// The slope of the regression line through the logarithms.
fn slope(points: &[(f64, f64)]) -> f64 {
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (mean_x, mean_y) = (mean(|point| point.0.ln()), mean(|point| point.1.ln()));
    let products = points.iter().map(|(x, y)| (x.ln() - mean_x) * (y.ln() - mean_y));
    products.sum::<f64>() / points.iter().map(|(x, _)| (x.ln() - mean_x).powi(2)).sum::<f64>()
}

fn main() {
    // Cargo passes `--bench`.
    let size = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    if let Some(nodes) = size {
        return plan_once(nodes);
    }
    println!("{:>8} {:>16} {:>16}", "nodes", "instructions", "for each node");
    let points = SIZES.map(|nodes| {
        let instructions = count(nodes);
        println!("{nodes:>8} {instructions:>16} {:>16.0}", instructions / nodes as f64);
        (nodes as f64, instructions)
    });
    let slope = slope(&points);
    println!(r#"{{"slope": {slope:.3}, "slope_max": {SLOPE_MAX}}}"#);
    assert!(slope <= SLOPE_MAX, "the instructions of a plan grow faster than the cluster");
}
