//! What went wrong in a pass, for statuses, events and metrics.

use coppice_operator_api::LastError;
use coppice_operator_api::error_code::ErrorCode;
use coppice_runtime::telemetry::chain;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::apply::WriteError;
use crate::index::key::Kind;
use crate::queue::Outcome;

/// Errors of one pass, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    found: Vec<(ErrorCode, Option<String>, WriteError)>,
}

impl Errors {
    /// Notes an error; `clique` is the name of the PodClique it is about, if it is about one.
    pub(crate) fn note(&mut self, code: ErrorCode, clique: Option<&str>, error: WriteError) {
        self.found.push((code, clique.map(str::to_owned), error));
    }

    /// Notes the error of a write, if it is one. Tells whether the write was done.
    pub(crate) fn check(
        &mut self,
        code: ErrorCode,
        clique: Option<&str>,
        done: Result<(), WriteError>,
    ) -> bool {
        match done {
            Ok(()) => true,
            Err(error) => {
                self.note(code, clique, error);
                false
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// How the pass ended because of them; `None` when there are none.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        if self.found.is_empty() {
            return None;
        }
        let transient = |error: &WriteError| {
            matches!(
                error,
                WriteError::Conflict { .. }
                    | WriteError::Missing { .. }
                    | WriteError::Exists { .. }
            )
        };
        if self
            .found
            .iter()
            .all(|(_, _, error)| matches!(error, WriteError::NotLeader))
        {
            return Some(Outcome::Done(None));
        }
        let only_transient = self.found.iter().all(|(_, _, error)| transient(error));
        Some(if only_transient {
            Outcome::Conflict
        } else {
            Outcome::Failed
        })
    }

    /// Category of the first one that matters.
    pub(crate) fn category(&self) -> Option<&'static str> {
        self.found.first().map(|(_, _, error)| error.category())
    }

    /// The first one, with its causes.
    pub(crate) fn first(&self) -> Option<String> {
        self.found
            .first()
            .map(|(_, _, error)| chain(error).to_string())
    }

    /// Whether an object's name is taken by somebody else.
    pub(crate) fn has_name_conflict(&self) -> bool {
        self.found
            .iter()
            .any(|(_, _, error)| matches!(error, WriteError::Taken { .. }))
    }

    /// As `status.lastErrors`, of one PodClique or of all. A line that was there before keeps its time, so that the same
    /// error does not cause a write each time. Conflicts are left out: they are over before anybody reads of them.
    pub(crate) fn lines(
        &self,
        clique: Option<&str>,
        before: Option<&Vec<LastError>>,
        now: Timestamp,
    ) -> Vec<LastError> {
        let mut lines: Vec<LastError> = Vec::new();
        for (code, about, error) in &self.found {
            if clique.is_some() && about.as_deref() != clique {
                continue;
            }
            if matches!(error, WriteError::Conflict { .. } | WriteError::NotLeader) {
                continue;
            }
            let description = chain(error).to_string();
            let same =
                |line: &&LastError| line.code == code.as_str() && line.description == description;
            if lines.iter().any(|line| same(&line)) {
                continue;
            }
            let earlier = before.into_iter().flatten().find(same).cloned();
            lines.push(earlier.unwrap_or_else(|| LastError {
                code: code.as_str().to_owned(),
                description: description.clone(),
                observed_at: Time(now),
            }));
        }
        lines.truncate(10);
        lines
    }
}

/// The code under which upstream reports failures with a kind of object.
pub(crate) fn code_of(kind: Kind) -> ErrorCode {
    match kind {
        Kind::Set | Kind::Clique => ErrorCode::CreateOrUpdatePodClique,
        Kind::Group => ErrorCode::SyncScalingGroup,
        Kind::Gang
        | Kind::PodGroup
        | Kind::CompositePodGroup
        | Kind::Workload
        | Kind::KaiPodGroup
        | Kind::VolcanoPodGroup => ErrorCode::CreateOrPatchPodGang,
        Kind::Pod => ErrorCode::CreatePod,
        Kind::Service => ErrorCode::SyncService,
        Kind::Autoscaler => ErrorCode::SyncHpa,
        Kind::ServiceAccount => ErrorCode::SyncServiceAccount,
        Kind::Role => ErrorCode::SyncRole,
        Kind::RoleBinding => ErrorCode::SyncRoleBinding,
        Kind::Claim | Kind::ClaimTemplate => ErrorCode::SyncSetResourceClaim,
        Kind::ComputeDomain => ErrorCode::SyncComputeDomain,
    }
}
