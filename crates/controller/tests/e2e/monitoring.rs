//! A real Prometheus scrapes the controller during a failover. The test runs every query of the dashboard and the
//! documentation.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::control_plane::free_ports;
use testbed::process::Process;
use testbed::tools;

use crate::picture::{Panel, draw};
use crate::rig::{Rig, SOON, read};

const LATER: Duration = Duration::from_secs(120);

/// Metrics of errors, and of events that this test does not cause. Queries for them must be valid, but may find
/// nothing.
const MAY_BE_EMPTY: [&str; 2] = ["errors_total", "evictions_total"];

struct Prometheus {
    _process: Process,
    url: String,
}

impl Prometheus {
    /// Starts a server that scrapes these ports every five seconds.
    fn start(rig: &Rig, targets: &[u16]) -> Self {
        let folder = rig.control_plane.folder();
        let targets: Vec<_> = targets.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let config = json!({
            "global": {"scrape_interval": "5s"},
            "scrape_configs": [{"job_name": "controller", "static_configs": [{"targets": targets}]}],
        });
        std::fs::write(folder.join("prometheus.yaml"), config.to_string()).unwrap();
        let port = free_ports(1).unwrap()[0];
        let configure = |command: &mut Command| {
            command
                .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        };
        let program = tools::binary("prometheus").unwrap();
        let process = Process::start("prometheus", &program, configure, folder).unwrap();
        Self { _process: process, url: format!("http://127.0.0.1:{port}") }
    }

    /// The current result of a query.
    async fn ask(&self, query: &str) -> Result<Vec<Value>, String> {
        let request =
            reqwest::Client::new().post(format!("{}/api/v1/query", self.url)).form(&[("query", query)]);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }
}

impl Prometheus {
    /// The results of a query over the last minute, one for each second.
    async fn history(&self, query: &str) -> Vec<Value> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let times = [("start", (now - 60).to_string()), ("end", now.to_string()), ("step", "1".to_owned())];
        let request = reqwest::Client::new().post(format!("{}/api/v1/query_range", self.url));
        let answer = request.form(&times).query(&[("query", query)]).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Every panel of the dashboard with the results of its queries.
    async fn panels(&self) -> Vec<Panel> {
        let dashboard: Value = serde_json::from_str(&read("monitoring/grafana-dashboard.json")).unwrap();
        let mut panels = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let text = |name: &str| panel[name].as_str().unwrap_or_default().to_owned();
            let mut found = Vec::new();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = filled(target["expr"].as_str().unwrap());
                match panel["type"].as_str() {
                    Some("timeseries" | "state-timeline") => found.extend(self.history(&query).await),
                    _ => found.extend(self.ask(&query).await.unwrap().into_iter().map(as_history)),
                }
            }
            panels.push(Panel {
                kind: text("type"),
                title: text("title"),
                place: panel["gridPos"].clone(),
                found,
            });
        }
        panels
    }
}

/// Converts a result of [`Prometheus::ask`] into the form of [`Prometheus::history`].
fn as_history(mut series: Value) -> Value {
    series["values"] = json!([series["value"].take()]);
    series
}

/// Replaces the variables in a query of the dashboard. The range is longer than the test takes on a slow machine.
fn filled(query: &str) -> String {
    query.replace("$cluster", ".*").replace("$__rate_interval", "5m").replace("$__range", "5m")
}

/// The queries of the dashboard, each with the title of its panel.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("monitoring/grafana-dashboard.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = filled(target["expr"].as_str().unwrap());
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

/// The queries of the documentation, each with its title: the fenced blocks with the language `promql`.
fn documented_queries() -> Vec<(String, String)> {
    let text = read("docs/monitoring.md");
    let blocks = text.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let parts = |block: &str| {
        let (title, query) = block.split_once('\n').unwrap();
        (title.trim_start_matches("# ").to_owned(), query.replace("gke-prod", "testbed"))
    };
    blocks.map(parts).collect()
}

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
