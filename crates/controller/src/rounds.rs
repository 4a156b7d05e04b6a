//! The loop: one round after another, whenever something changed or is due.

use std::time::Duration;

use kube::Client;
use plan::Timestamp;
use tokio::time::Instant;

use crate::clouds::Clouds;
use crate::health::Health;
use crate::watch::Watched;
use crate::{act, observe, report};

/// Changes that come together are looked at together.
const SETTLE: Duration = Duration::from_millis(50);

/// The pause before a failed round is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The longest pause between two rounds.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Runs rounds for ever.
pub async fn run(client: Client, watched: Watched, mut clouds: Clouds, health: &Health) {
    let mut next_round = Instant::now();
    loop {
        tokio::select! {
            () = watched.changed() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep_until(next_round) => {}
        }
        next_round = Instant::now() + IDLE_MAX;
        // An object that was not read yet may own an address, and a node that was not read yet may hold one.
        if watched.is_complete() {
            health.set_ready();
            next_round = next_round.min(round(&client, &watched, &mut clouds).await);
        }
    }
}

/// One round; the answer is when the next one is due though nothing changes.
async fn round(client: &Client, watched: &Watched, clouds: &mut Clouds) -> Instant {
    let began = Instant::now();
    let asked = observe::asked(watched);
    clouds.refresh(&asked.scopes).await;
    let mut world = observe::world(watched, &asked.pools, clouds);
    let mut plan = plan::plan(&world, Timestamp::now());
    if !plan.steps.is_empty() {
        // Nothing is moved on facts that are older than the decision to move it.
        let scopes = act::scopes_of(&plan).map(|scope| (scope.clone(), began.elapsed()));
        clouds.refresh_some(&scopes.collect()).await;
        world = observe::world(watched, &asked.pools, clouds);
        plan = plan::plan(&world, Timestamp::now());
    }
    let outcome = act::carry_out(clouds, &plan).await;
    let reported = report::publish(client, watched, &asked, &world, &plan, &outcome).await;
    if let Err(error) = &reported {
        tracing::warn!(%error, "reporting failed");
    }
    if reported.is_err() || !outcome.is_success() {
        return Instant::now() + RETRY;
    }
    let asks_again = plan.ask_again.map(|at| Instant::now() + until(at));
    [asks_again, clouds.next_refresh(&asked.scopes)].into_iter().flatten().min().unwrap_or(began + IDLE_MAX)
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
}
