//! `doctor`: the checks that the API server's aggregation layer and the HPA depend on, in the order in which they depend on each other.
//!
//! Facts are fetched as the caller ([`facts`]), then judged without the cluster ([`judge`]). The first check of a chain that fails is
//! named, with what to do about it; those behind it would only repeat the failure.

mod facts;
mod judge;
mod rights;

use anyhow::bail;
use coppice_runtime::client;

use crate::settings::DoctorArgs;
use facts::Facts;

pub(crate) use facts::Question;

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What was looked at.
    pub check: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it should be: what was seen.
    Good(String),
    /// It could not be looked at from here: why.
    Unknown(String),
    /// It keeps metrics from autoscalers.
    Bad {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        next: String,
    },
}

impl Finding {
    fn good(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            outcome: Outcome::Good(seen.into()),
        }
    }

    fn unknown(check: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            outcome: Outcome::Unknown(why.into()),
        }
    }

    fn bad(check: impl Into<String>, problem: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            outcome: Outcome::Bad {
                problem: problem.into(),
                next: next.into(),
            },
        }
    }

    fn is_bad(&self) -> bool {
        matches!(self.outcome, Outcome::Bad { .. })
    }
}

/// Runs every check; `print` shows the report.
///
/// # Errors
/// When there is no cluster to ask, and when a check failed: the exit code says so to programs.
pub(crate) async fn doctor(
    args: &DoctorArgs,
    kube: &client::KubeArgs,
    print: impl Fn(&str),
) -> anyhow::Result<()> {
    let client = client::connect(kube).await?;
    let question = args.question(client.default_namespace());
    let mut findings = Vec::new();
    let mut namespace = args.service.service_namespace.clone();
    for api in args.apis.apis() {
        let facts = Facts::fetch(&client, api, &question).await;
        namespace = namespace.or_else(|| facts.service_namespace());
        findings.extend(judge::judge(api, &facts, args));
    }
    match namespace {
        Some(namespace) => {
            findings.extend(rights::check(&client, args, &namespace, &question).await)
        }
        None => findings.push(Finding::unknown(
            "rights",
            "no APIService says in which namespace the adapter runs: name it by --service-namespace",
        )),
    }
    print(&render(&findings));
    let bad = findings.iter().filter(|finding| finding.is_bad()).count();
    if bad > 0 {
        bail!("{bad} of {} checks failed", findings.len());
    }
    Ok(())
}

fn render(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for Finding { check, outcome } in findings {
        match outcome {
            Outcome::Good(seen) => lines.push(format!("ok      {check}: {seen}")),
            Outcome::Unknown(why) => lines.push(format!("unknown {check}: {why}")),
            Outcome::Bad { problem, next } => {
                lines.push(format!("FAILED  {check}: {problem}"));
                lines.push(format!("        next: {next}"));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_shown_with_its_next_step() {
        let findings = [
            Finding::good("APIService", "is there"),
            Finding::unknown("certificate", "no way from here"),
            Finding::bad("discovery", "nobody answers", "look at the pods"),
        ];
        assert_eq!(
            render(&findings),
            "ok      APIService: is there\n\
             unknown certificate: no way from here\n\
             FAILED  discovery: nobody answers\n        next: look at the pods"
        );
    }
}
