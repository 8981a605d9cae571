//! What was granted from a pool: the list in the GpuBudget's status, and how it is written.

use std::time::Duration;

use coppice_scaler_api::{BudgetGrant, GpuBudget};
use coppice_scaler_plan::Holdings;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::{Member, Pools, key_of, name_of, whole};
use crate::actuate::MANAGER;
use crate::observe::fleet::since;
use crate::target::message;

/// A grant sinks at the earliest this long after it was raised: what was asked for with it has been seen by then.
const SETTLED: Duration = Duration::from_secs(15);

impl Pools {
    /// The ledger of `pool` after these decisions. `None`: it stays as it is. Each decision comes with whether everything that was asked for before
    /// has been seen, so that its grant may sink.
    pub(crate) fn ledger(
        &self,
        pool: &str,
        decided: &[(Member<'_>, Option<&Holdings>, bool)],
        now: Timestamp,
    ) -> Option<Vec<BudgetGrant>> {
        let view = self.view(pool).ok()?;
        let mut grants: Vec<BudgetGrant> = view
            .grants
            .iter()
            .filter(|grant| {
                let Some(key) = key_of(&grant.policy) else {
                    return false;
                };
                let counted = decided
                    .iter()
                    .any(|(member, held, _)| *member.key == key && held.is_some());
                !counted && !self.is_gone(pool, &key)
            })
            .cloned()
            .collect();
        for (member, held, may_sink) in decided {
            let Some(held) = held else { continue };
            let policy = name_of(member.key);
            for (role, units, gpus) in parts(member, held) {
                let before = view
                    .grants
                    .iter()
                    .find(|grant| grant.policy == policy && grant.role == role);
                let wanted = BudgetGrant {
                    policy: policy.clone(),
                    role,
                    units,
                    gpus,
                    at: now,
                };
                grants.extend(next(before, wanted, *may_sink, now));
            }
        }
        // Another order alone is no reason to write.
        let mut before = view.grants.clone();
        for list in [&mut grants, &mut before] {
            list.sort_by(|one, other| (&one.policy, &one.role).cmp(&(&other.policy, &other.role)));
        }
        (grants != before).then_some(grants)
    }

    /// Writes the ledger of `pool` unless someone else has written it since it was read.
    pub(crate) async fn write(
        &self,
        client: &Client,
        pool: &str,
        grants: &[BudgetGrant],
    ) -> Result<(), Refused> {
        let view = self.view(pool).map_err(Refused::ByServer)?;
        let granted: u64 = grants.iter().map(|grant| u64::from(grant.gpus)).sum();
        let patch = json!({
            "metadata": {"resourceVersion": view.version},
            "status": {"granted": whole(granted), "grants": grants},
        });
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api: Api<GpuBudget> = Api::all(client.clone());
        match api
            .patch_status(pool, &parameters, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(Refused::Outdated)
            }
            Err(error) => Err(Refused::ByServer(format!(
                "the grant cannot be written to GpuBudget \"{pool}\", so nothing grows: {}",
                message(&error)
            ))),
        }
    }
}

/// Why a ledger was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Someone else wrote it first: the next pass looks again.
    Outdated,
    /// The API server's reason.
    ByServer(String),
}

/// What a policy holds by role; pods that belong to no role come last, without one.
fn parts<'a>(
    member: &'a Member<'_>,
    held: &'a Holdings,
) -> impl Iterator<Item = (Option<String>, u32, u32)> + 'a {
    let roles = member.spec.roles.iter().zip(&member.fleet.roles);
    let of_roles = roles.zip(&held.roles).map(|((role, fleet), gpus)| {
        let units = gpus
            .checked_div(fleet.gpus_per_unit.unwrap_or(0).into())
            .unwrap_or(0);
        (Some(role.name.clone()), whole(units), whole(*gpus))
    });
    of_roles.chain([(None, 0, whole(held.beside))])
}

/// The grant after a decision that holds `wanted`: raised at once; lowered when it may sink and was not raised just now; gone at nothing.
pub(super) fn next(
    before: Option<&BudgetGrant>,
    wanted: BudgetGrant,
    may_sink: bool,
    now: Timestamp,
) -> Option<BudgetGrant> {
    let Some(before) = before else {
        return (wanted.gpus > 0).then_some(wanted);
    };
    if wanted.gpus > before.gpus {
        return Some(wanted);
    }
    let sinks = may_sink && since(Some(before.at), now) >= SETTLED;
    if wanted.gpus == before.gpus || !sinks {
        return Some(before.clone());
    }
    (wanted.gpus > 0).then_some(BudgetGrant {
        at: before.at,
        ..wanted
    })
}
