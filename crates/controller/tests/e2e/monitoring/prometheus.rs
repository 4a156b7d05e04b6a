//! A real Prometheus that scrapes the controllers of a test, and the queries of the dashboard and the documentation.

use std::process::Command;

use serde_json::{Value, json};
use testbed::control_plane::free_ports;
use testbed::process::Process;
use testbed::tools;

use crate::picture::Panel;
use crate::rig::{Rig, read};

pub struct Prometheus {
    _process: Process,
    url: String,
}

impl Prometheus {
    /// Starts a server that scrapes these ports every five seconds.
    pub fn start(rig: &Rig, targets: &[u16]) -> Self {
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
    pub async fn ask(&self, query: &str) -> Result<Vec<Value>, String> {
        let request =
            reqwest::Client::new().post(format!("{}/api/v1/query", self.url)).form(&[("query", query)]);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }

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
    pub async fn panels(&self) -> Vec<Panel> {
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
pub fn dashboard_queries() -> Vec<(String, String)> {
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
pub fn documented_queries() -> Vec<(String, String)> {
    let text = read("docs/monitoring.md");
    let blocks = text.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let parts = |block: &str| {
        let (title, query) = block.split_once('\n').unwrap();
        (title.trim_start_matches("# ").to_owned(), query.replace("gke-prod", "testbed"))
    };
    blocks.map(parts).collect()
}
