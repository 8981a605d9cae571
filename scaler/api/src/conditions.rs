//! Condition types and reasons of a ScalingPolicy.

use std::fmt;

macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order in which they are listed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// `type` of a condition in `ScalingPolicy.status.conditions`.
    ConditionType {
        /// The policy can be followed: its target and roles exist and it makes sense.
        Ready,
        /// Every role's signals are fresh.
        MetricsAvailable,
        /// A limit of the policy keeps a role from what the load needs.
        ScalingLimited,
        /// The GPU budget does.
        BudgetLimited,
        /// The latency objectives can be met by some number of units.
        ObjectivesFeasible,
        /// Someone else writes the same replicas.
        TargetConflict,
    }
}

names! {
    /// `reason` of a condition, of an event, and of a log line.
    Reason {
        /// All is well.
        AsExpected,
        /// The policy itself cannot be followed.
        InvalidPolicy,
        /// The target does not exist.
        TargetNotFound,
        /// A role names no template of the target.
        RoleNotFound,
        /// A role's profile cannot be read.
        ProfileUnavailable,
        /// The policy names a GpuBudget that is not known, or takes no grant for it: growth is refused.
        BudgetUnavailable,
        /// The policy is paused.
        Paused,
        /// Nothing has been measured since the scaler started.
        Starting,
        /// Signals are older than two scrapes.
        MetricsStale,
        /// Signals are missing beyond the hold time.
        MetricsLost,
        /// The load is inferred from engines because no traffic endpoint answers.
        TrafficUnknown,
        /// Limits do not bite.
        WithinLimits,
        /// A role is at its maximum.
        AtMaximum,
        /// The budget is used up.
        BudgetExhausted,
        /// How many GPUs a unit holds is unknown.
        GpusUnknown,
        /// Pods cannot be scheduled.
        Unschedulable,
        /// No number of units meets the objectives.
        Infeasible,
        /// Another writer changed the replicas.
        OtherWriter,
        /// A write was refused by the API server.
        WriteRefused,
        /// Replicas were raised.
        ScaledUp,
        /// Replicas were lowered.
        ScaledDown,
        /// Replicas were moved between roles or sets.
        Rescaled,
    }
}
