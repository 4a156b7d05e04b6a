//! When the grace period of each NotReady node starts.
//!
//! In: the readiness of nodes as the controller observes it. Out: when each NotReady node stopped being Ready, in wall
//! clock time. If the controller saw the node Ready before, it does not count from the time in the node's condition:
//! another machine writes that time with its own clock, and writes it again when the condition changes from `False` to
//! `Unknown`. But if a list shows another time than the last version, the node may have been Ready in between, so the
//! grace period starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plan::{NodeName, Readiness, Timestamp};
use tokio::time::Instant;

/// How the controller learnt of a version of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An event of the watch. The controller has seen all versions before it.
    Event,
    /// A list. The controller may have missed versions.
    List,
}

/// The nodes that are not Ready.
#[derive(Default)]
pub(super) struct Unready {
    nodes: BTreeMap<NodeName, Since>,
    /// Nodes that can't be decoded, and that were Ready before.
    were_ready: BTreeSet<NodeName>,
}

struct Since {
    seen: Instant,
    /// The time in the condition.
    reported: Timestamp,
    /// How long the node had been NotReady when the controller first saw that. `None` until the first call of
    /// [`Unready::at`], which knows the wall clock.
    age_when_seen: Option<Duration>,
}

impl Unready {
    /// Observes a new version of a node. `before` is the readiness of the last version, if there is one.
    pub(super) fn observe(
        &mut self,
        name: &NodeName,
        before: Option<Readiness>,
        now: Readiness,
        source: Source,
    ) {
        if before.is_none() {
            self.forget(name);
        }
        match now {
            Readiness::Ready => self.forget(name),
            // The controller can't decode this version.
            Readiness::Unknown => {
                if before == Some(Readiness::Ready) {
                    self.were_ready.insert(name.clone());
                }
            }
            Readiness::NotReadySince(reported) => {
                let was_ready = self.were_ready.remove(name) || before == Some(Readiness::Ready);
                let age_when_seen = match self.nodes.get_mut(name) {
                    // The node may have been Ready in between, without an event.
                    Some(known) if source == Source::List && known.reported != reported => {
                        Some(Duration::ZERO)
                    }
                    Some(known) => {
                        known.reported = reported;
                        return;
                    }
                    None => was_ready.then_some(Duration::ZERO),
                };
                self.nodes.insert(name.clone(), Since { seen: Instant::now(), reported, age_when_seen });
            }
        }
    }

    pub(super) fn forget(&mut self, name: &NodeName) {
        self.nodes.remove(name);
        self.were_ready.remove(name);
    }

    /// Each node, and since when it has not been Ready.
    pub(super) fn at(&mut self, wall: Timestamp) -> impl Iterator<Item = (&NodeName, Timestamp)> {
        self.nodes.iter_mut().map(move |(name, since)| {
            let seen = earlier(wall, since.seen.elapsed());
            // If the time in the condition is in the future, the time at which the controller saw it counts.
            let reported = || Duration::try_from(seen.duration_since(since.reported)).unwrap_or_default();
            let age = *since.age_when_seen.get_or_insert_with(reported);
            (name, earlier(seen, age))
        })
    }
}

fn earlier(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn since(unready: &mut Unready, wall: i64) -> Option<i64> {
        unready.at(time(wall)).next().map(|(_, since)| since.as_second() - 1_000_000)
    }

    fn node() -> NodeName {
        "n1".into()
    }

    fn not_ready(since: i64) -> Readiness {
        Readiness::NotReadySince(time(since))
    }

    #[tokio::test(start_paused = true)]
    async fn i15_neither_condition_nor_wall_clock_moves_the_start() {
        let mut unready = Unready::default();
        unready.observe(&node(), None, Readiness::Ready, Source::Event);
        // The clock of the machine that wrote the condition is slow by 60 s.
        unready.observe(&node(), Some(Readiness::Ready), not_ready(-60), Source::Event);
        assert_eq!(since(&mut unready, 0), Some(0));
        tokio::time::advance(Duration::from_secs(20)).await;
        unready.observe(&node(), Some(not_ready(-60)), not_ready(20), Source::Event);
        assert_eq!(since(&mut unready, 20), Some(0), "the change from False to Unknown does not move it");
        assert_eq!(since(&mut unready, 520), Some(500), "somebody set the wall clock");
        unready.observe(&node(), Some(not_ready(20)), Readiness::Ready, Source::Event);
        assert_eq!(since(&mut unready, 20), None);
        unready.observe(&node(), Some(Readiness::Ready), not_ready(20), Source::Event);
        assert_eq!(since(&mut unready, 30), Some(30));
    }

    #[tokio::test(start_paused = true)]
    async fn i15_the_condition_counts_for_a_node_never_seen_ready() {
        let mut unready = Unready::default();
        unready.observe(&node(), None, not_ready(-300), Source::Event);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(since(&mut unready, 0), Some(-300));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(since(&mut unready, 110), Some(-200), "somebody set the wall clock");
        unready.forget(&node());
        unready.observe(&node(), None, not_ready(60), Source::Event);
        assert_eq!(since(&mut unready, 0), Some(0), "a time in the future counts as now");
    }

    #[tokio::test(start_paused = true)]
    async fn i15_a_node_may_have_been_ready_between_an_event_and_a_list() {
        let mut unready = Unready::default();
        unready.observe(&node(), Some(Readiness::Ready), not_ready(0), Source::Event);
        tokio::time::advance(Duration::from_secs(60)).await;
        unready.observe(&node(), Some(not_ready(0)), not_ready(0), Source::List);
        assert_eq!(since(&mut unready, 60), Some(0), "the list shows the same condition");
        unready.observe(&node(), Some(not_ready(0)), not_ready(55), Source::List);
        assert_eq!(since(&mut unready, 60), Some(60), "the list shows another condition");
    }

    #[tokio::test(start_paused = true)]
    async fn i15_an_undecodable_version_does_not_move_the_start() {
        let mut unready = Unready::default();
        unready.observe(&node(), Some(Readiness::Ready), not_ready(0), Source::Event);
        assert_eq!(since(&mut unready, 0), Some(0));
        tokio::time::advance(Duration::from_secs(5)).await;
        unready.observe(&node(), Some(not_ready(0)), Readiness::Unknown, Source::Event);
        unready.observe(&node(), Some(Readiness::Unknown), not_ready(3), Source::Event);
        assert_eq!(since(&mut unready, 5), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn i15_a_node_that_becomes_decodable_counts_as_ready_only_if_it_was() {
        for (before, expected) in [(Some(Readiness::Ready), 0), (None, -300)] {
            let mut unready = Unready::default();
            unready.observe(&node(), before, Readiness::Unknown, Source::Event);
            unready.observe(&node(), Some(Readiness::Unknown), not_ready(-300), Source::Event);
            assert_eq!(since(&mut unready, 0), Some(expected));
        }
    }
}
