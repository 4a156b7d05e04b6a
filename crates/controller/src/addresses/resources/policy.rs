//! What a user allows, over the defaults of the kind.

use std::time::Duration;

use api::policy;
use plan::{Mode, Policy, Spread, Takeover};

/// What a user allows, over the defaults of the kind.
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
    let number = |value: i64| usize::try_from(value).unwrap_or(0);
    Policy {
        mode: match mode {
            None | Some(policy::Mode::Active) => Mode::Active,
            Some(policy::Mode::Observe) => Mode::Observe,
        },
        failover_grace: failover_grace_seconds
            .map_or(grace_default, |seconds| Duration::from_secs(seconds.unsigned_abs())),
        concurrent_moves_max: max_concurrent_moves.map(number),
        healthy_min: min_healthy.map_or(0, number),
        cool_off,
        takeover: match takeover {
            None | Some(policy::Takeover::Never) => Takeover::Never,
            Some(policy::Takeover::Always) => Takeover::Always,
        },
        spread: match spread {
            None | Some(policy::Spread::None) => Spread::None,
            Some(policy::Spread::Zone) => Spread::Zone,
        },
        leaves_on_disruption: disruption_taints == Some(policy::DisruptionTaints::Leave),
        releases_created: release_created == Some(policy::ReleaseCreated::WhenUnneeded),
        detaches_on_delete: on_delete == Some(policy::OnDelete::Detach),
        evicts: evict_pods.unwrap_or(true),
    }
}
