//! Parses `policy`.

use std::time::Duration;

use api::policy;
use plan::{Mode, Policy, Spread, Takeover};

/// The policy of an object. Fields that are not set have the default of the object's kind.
pub(super) fn allowed(asked: Option<&policy::Policy>, grace_default: Duration, cool_off: Duration) -> Policy {
    let policy::Policy {
        mode,
        failover_grace_seconds,
        max_concurrent_moves,
        min_healthy,
        takeover,
        spread,
        disruption_taints,
        on_delete,
        release_created,
        evict_pods,
    } = asked.cloned().unwrap_or_default();
    let default = Policy::defaults(grace_default, cool_off);
    let number = |value: i64| usize::try_from(value).unwrap_or(0);
    Policy {
        mode: mode.map_or(default.mode, |mode| match mode {
            policy::Mode::Active => Mode::Active,
            policy::Mode::Observe => Mode::Observe,
        }),
        failover_grace: failover_grace_seconds
            .map_or(default.failover_grace, |seconds| Duration::from_secs(seconds.unsigned_abs())),
        concurrent_moves_max: max_concurrent_moves
            .map_or(default.concurrent_moves_max, |max| Some(number(max))),
        healthy_min: min_healthy.map_or(default.healthy_min, number),
        cool_off: default.cool_off,
        takeover: takeover.map_or(default.takeover, |takeover| match takeover {
            policy::Takeover::Never => Takeover::Never,
            policy::Takeover::Always => Takeover::Always,
        }),
        spread: spread.map_or(default.spread, |spread| match spread {
            policy::Spread::None => Spread::None,
            policy::Spread::Zone => Spread::Zone,
        }),
        leaves_on_disruption: disruption_taints
            .map_or(default.leaves_on_disruption, |taints| taints == policy::DisruptionTaints::Leave),
        releases_created: release_created
            .map_or(default.releases_created, |release| release == policy::ReleaseCreated::WhenUnneeded),
        detaches_on_delete: on_delete
            .map_or(default.detaches_on_delete, |on_delete| on_delete == policy::OnDelete::Detach),
        evicts: evict_pods.unwrap_or(default.evicts),
    }
}
