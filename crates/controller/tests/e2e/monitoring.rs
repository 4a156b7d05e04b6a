//! A real Prometheus scrapes the controller during a failover. The test runs every query of the dashboard and the
//! documentation.

mod prometheus;

use std::time::Duration;

use testbed::cluster::eventually;

use self::prometheus::{Prometheus, dashboard_queries, documented_queries};
use crate::picture::draw;
use crate::rig::{Rig, SOON, read};

const LATER: Duration = Duration::from_secs(120);

/// Metrics of errors, and of events that this test does not cause. Queries for them must be valid, but may find
/// nothing.
const MAY_BE_EMPTY: [&str; 2] = ["errors_total", "evictions_total"];

#[tokio::test(flavor = "multi_thread")]
async fn n14_n15_every_documented_and_dashboard_query_finds_data() {
    let rig = Rig::prepare().await;
    let named = [("CLUSTER_NAME", "testbed")];
    let controllers = [
        rig.controller("ip-address-controller-1", &named),
        rig.controller("ip-address-controller-2", &named),
    ];
    let prometheus =
        Prometheus::start(&rig, &controllers.each_ref().map(|controller| controller.metrics_port));
    rig.control_plane.apply(&read("examples/netipallocation-with-deployment.yaml")).unwrap();
    rig.settled("nia/web").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let pods = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"];
    let has_pods = |node: &String| rig.kubectl(&pods).split(' ').any(|used| used == node);
    let holders = || rig.ready_nodes();
    // Pods of a deleted node stay for a while, so delete a node without pods if there is one.
    let victim = holders().into_iter().min_by_key(|node| has_pods(node)).unwrap();
    rig.kubectl(&["delete", "node", &victim]);
    eventually("the address is on another node", SOON, async || {
        let ready = holders();
        Ok(ready.len() == 2 && !ready.contains(&victim))
    })
    .await
    .unwrap();
    rig.settled("nia/web").await;
    // A cordoned node keeps its address while pods of the workload run there. Some queries look for that.
    let used = || holders().into_iter().find(has_pods);
    eventually("pods run on a node with an address", LATER, async || Ok(used().is_some())).await.unwrap();
    rig.kubectl(&["cordon", &used().unwrap()]);

    let (mut empty, mut wrong, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    for (title, query) in dashboard_queries().into_iter().chain(documented_queries()) {
        assert!(!query.contains("vector("), "{title} would hide an empty result: {query}");
        let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part));
        // A scrape on a busy machine may fail, and then all its series have no value until the next one.
        let mut answer = Ok(Vec::new());
        let has_answer = async || {
            answer = prometheus.ask(&query).await;
            Ok(may_be_empty || answer.as_ref().is_ok_and(|found| !found.is_empty()))
        };
        _ = eventually("the query has a result", LATER, has_answer).await;
        match answer {
            Err(error) => wrong.push(format!("{title}: {query}: {error}")),
            Ok(found) if found.is_empty() && !may_be_empty => {
                empty.push(format!("{title}: {query}"));
            }
            Ok(found) => drawn.push((title, query, found.len())),
        }
    }
    for (title, query, found) in &drawn {
        println!("{found:>3} series  {title}: {}", query.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    assert!(wrong.is_empty() && empty.is_empty(), "{wrong:#?} {empty:#?}");
    assert!(drawn.len() >= 40, "only {} queries", drawn.len());
    if let Some(path) = std::env::var_os("PICTURE") {
        let caption = "What the dashboard's queries found on the testbed in the minute around a failover; drawn from the \
                       answers of Prometheus, not by Grafana.";
        std::fs::write(path, draw(&prometheus.panels().await, caption)).unwrap();
    }
}
