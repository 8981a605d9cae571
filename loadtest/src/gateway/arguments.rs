//! What the gateway is told on its command line.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use anyhow::bail;
use coppice_runtime::client::KubeArgs;

use super::models::Hold;
use crate::drive::target::BaseUrl;
use crate::schedule::span::Span;
use crate::serve::arguments::Role;

/// Arguments of `coppice-loadtest gateway`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// A model that is served: NAME, with its engines in the flags below, or NAME=ROLE:SELECTOR[;ROLE:SELECTOR] with the pods of its
    /// engines. May be repeated
    #[arg(
        long = "model",
        env = "COPPICE_GATEWAY_MODEL",
        default_value = "sim",
        value_name = "NAME[=ROLE:SELECTOR]"
    )]
    models: Vec<ModelArg>,
    /// Label selector of the prefill engines' pods
    #[arg(
        long,
        env = "COPPICE_GATEWAY_PREFILL_SELECTOR",
        value_name = "SELECTOR",
        help_heading = "Engines"
    )]
    prefill_selector: Option<String>,
    /// Label selector of the decode engines' pods
    #[arg(
        long,
        env = "COPPICE_GATEWAY_DECODE_SELECTOR",
        value_name = "SELECTOR",
        help_heading = "Engines"
    )]
    decode_selector: Option<String>,
    /// Label selector of the pods of engines that do both
    #[arg(
        long,
        env = "COPPICE_GATEWAY_AGGREGATED_SELECTOR",
        value_name = "SELECTOR",
        help_heading = "Engines"
    )]
    aggregated_selector: Option<String>,
    /// An engine outside any cluster; the role is aggregated, prefill or decode [default: aggregated]. May be repeated
    #[arg(
        long = "backend",
        value_name = "[MODEL=][ROLE@]URL",
        help_heading = "Engines"
    )]
    backends: Vec<BackendArg>,
    /// Namespace of the engines' pods; without it the kubeconfig's
    #[arg(
        long,
        env = "COPPICE_GATEWAY_NAMESPACE",
        value_name = "NAME",
        help_heading = "Engines"
    )]
    pub(crate) namespace: Option<String>,
    /// Port of engines whose pods neither carry the annotation coppice.dev/port nor name a container port `http`, nor have any port
    #[arg(
        long,
        env = "COPPICE_GATEWAY_ENGINE_PORT",
        default_value_t = 8000,
        value_name = "PORT",
        help_heading = "Engines"
    )]
    pub(crate) engine_port: u16,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,

    /// How long a request waits while no engine is ready
    #[arg(
        long,
        env = "COPPICE_GATEWAY_HOLD_TIMEOUT",
        default_value = "60s",
        value_name = "DURATION",
        help_heading = "Waiting"
    )]
    hold_timeout: Span,
    /// How many requests of a model wait while no engine is ready; more are refused
    #[arg(
        long,
        env = "COPPICE_GATEWAY_HOLD_REQUESTS",
        default_value_t = 10_000,
        value_name = "COUNT",
        help_heading = "Waiting"
    )]
    hold_requests: usize,

    /// Address to listen on
    #[arg(long, env = "COPPICE_GATEWAY_HOST", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "ADDRESS")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one and logs it
    #[arg(long, env = "COPPICE_GATEWAY_PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// How long requests may go on after the signal to end
    #[arg(
        long,
        env = "COPPICE_GATEWAY_DRAIN",
        default_value = "30s",
        value_name = "DURATION"
    )]
    pub(crate) drain: Span,
}

/// Where a model's engines are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Engines {
    /// Pods, by label selector.
    Selected(Vec<(Role, String)>),
    /// At these addresses.
    Fixed(Vec<(Role, BaseUrl)>),
}

impl Args {
    /// Limits of waiting.
    pub(crate) fn hold(&self) -> Hold {
        Hold {
            timeout: self.hold_timeout.0,
            requests: self.hold_requests,
        }
    }

    /// The models with their engines.
    ///
    /// # Errors
    /// A model without engines, one with half of a pair, or an engine of no model.
    pub(crate) fn engines(&self) -> anyhow::Result<BTreeMap<String, Engines>> {
        let mut models = BTreeMap::new();
        for ModelArg { name, selectors } in &self.models {
            let mut selected = selectors.clone();
            if selectors.is_empty() && self.models.len() == 1 {
                let flags = [
                    (Role::Prefill, &self.prefill_selector),
                    (Role::Decode, &self.decode_selector),
                    (Role::Aggregated, &self.aggregated_selector),
                ];
                selected.extend(
                    flags
                        .into_iter()
                        .filter_map(|(role, selector)| Some((role, selector.clone()?))),
                );
            }
            let is_alone = self.models.len() == 1;
            let of_this = |backend: &&BackendArg| match &backend.model {
                Some(model) => model == name,
                None => is_alone,
            };
            let fixed: Vec<_> = self
                .backends
                .iter()
                .filter(of_this)
                .map(|backend| (backend.role, backend.url.clone()))
                .collect();
            let engines = match (selected.is_empty(), fixed.is_empty()) {
                (true, true) => bail!(
                    "model {name:?} has no engines; give --aggregated-selector, --prefill-selector and --decode-selector, or --backend"
                ),
                (false, false) => {
                    bail!("model {name:?} has both selectors and --backend; give one of them")
                }
                (false, true) => Engines::Selected(selected),
                (true, false) => Engines::Fixed(fixed),
            };
            check_pairs(name, &engines)?;
            if models.insert(name.clone(), engines).is_some() {
                bail!("--model {name:?} is given twice");
            }
        }
        let has_flags = [
            &self.prefill_selector,
            &self.decode_selector,
            &self.aggregated_selector,
        ];
        if self.models.len() > 1 && has_flags.iter().any(|flag| flag.is_some()) {
            bail!(
                "with several models write each one's selectors as --model NAME=ROLE:SELECTOR;ROLE:SELECTOR"
            );
        }
        for backend in &self.backends {
            match &backend.model {
                Some(model) if !models.contains_key(model) => {
                    bail!(
                        "--backend {} is for model {model:?}, which no --model names",
                        backend.url.authority()
                    )
                }
                None if self.models.len() > 1 => {
                    bail!(
                        "--backend {} names no model; with several models write MODEL=URL",
                        backend.url.authority()
                    )
                }
                Some(_) | None => {}
            }
        }
        Ok(models)
    }
}

/// Prefill is of no use without decode, nor the other way round.
fn check_pairs(model: &str, engines: &Engines) -> anyhow::Result<()> {
    let roles: Vec<Role> = match engines {
        Engines::Selected(selectors) => selectors.iter().map(|(role, _)| *role).collect(),
        Engines::Fixed(backends) => backends.iter().map(|(role, _)| *role).collect(),
    };
    match (
        roles.contains(&Role::Prefill),
        roles.contains(&Role::Decode),
    ) {
        (true, false) => {
            bail!("model {model:?} has prefill engines and no decode engines; give both")
        }
        (false, true) => {
            bail!("model {model:?} has decode engines and no prefill engines; give both")
        }
        (true, true) | (false, false) => Ok(()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelArg {
    name: String,
    selectors: Vec<(Role, String)>,
}

impl FromStr for ModelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, selectors) = text.split_once('=').unwrap_or((text, ""));
        if name.is_empty() {
            return Err("a model's name comes first: NAME or NAME=ROLE:SELECTOR".to_owned());
        }
        let selectors = selectors
            .split(';')
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (role, selector) = part
                    .split_once(':')
                    .ok_or_else(|| format!("{part:?} is not ROLE:SELECTOR"))?;
                if selector.is_empty() {
                    return Err(format!(
                        "{part:?} has an empty selector, which would mean every pod"
                    ));
                }
                Ok((role_of(role)?, selector.to_owned()))
            })
            .collect::<Result<_, String>>()?;
        Ok(Self {
            name: name.to_owned(),
            selectors,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BackendArg {
    model: Option<String>,
    role: Role,
    url: BaseUrl,
}

impl FromStr for BackendArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text
            .find("://")
            .ok_or_else(|| format!("{text:?} has no URL such as http://HOST:PORT"))?;
        let before = &text[..scheme];
        let (model, rest) = match before.find('=') {
            Some(at) => (Some(text[..at].to_owned()), &text[at + 1..]),
            None => (None, text),
        };
        let (role, url) = match rest.split_once('@') {
            Some((role, url)) => (role_of(role)?, url),
            None => (Role::Aggregated, rest),
        };
        let url: BaseUrl = url.parse().map_err(|error| format!("{error}"))?;
        if url.tls {
            return Err(format!("{text:?}: engines are reached over http"));
        }
        Ok(Self { model, role, url })
    }
}

fn role_of(text: &str) -> Result<Role, String> {
    <Role as clap::ValueEnum>::from_str(text, false)
        .map_err(|_| format!("{text:?} is no role; roles are aggregated, prefill and decode"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        args: Args,
    }

    fn engines(words: &[&str]) -> anyhow::Result<BTreeMap<String, Engines>> {
        Alone::try_parse_from([&["gateway"], words].concat())?
            .args
            .engines()
    }

    #[test]
    fn one_model_takes_its_engines_from_the_flags() {
        let models = engines(&[
            "--model=m",
            "--prefill-selector=a=b,c=d",
            "--decode-selector=e in (f,g)",
        ])
        .unwrap();
        let expected = vec![
            (Role::Prefill, "a=b,c=d".to_owned()),
            (Role::Decode, "e in (f,g)".to_owned()),
        ];
        assert_eq!(models["m"], Engines::Selected(expected));
        let models = engines(&[
            "--backend=http://127.0.0.1:8001",
            "--backend=http://127.0.0.1:8002",
        ])
        .unwrap();
        assert!(matches!(&models["sim"], Engines::Fixed(backends) if backends.len() == 2));
    }

    #[test]
    fn several_models_carry_their_own() {
        let models = engines(&[
            "--model=a=prefill:x=1,y=2;decode:x=3",
            "--model=org/b",
            "--backend=org/b=aggregated@http://h:1",
        ])
        .unwrap();
        let pair = vec![
            (Role::Prefill, "x=1,y=2".to_owned()),
            (Role::Decode, "x=3".to_owned()),
        ];
        assert_eq!(models["a"], Engines::Selected(pair));
        assert!(
            matches!(&models["org/b"], Engines::Fixed(backends) if backends[0].0 == Role::Aggregated)
        );
    }

    #[test]
    fn what_cannot_work_is_said() {
        for (words, part) in [
            (&["--model=m"][..], "has no engines"),
            (&["--prefill-selector=a=b"], "no decode engines"),
            (&["--backend=decode@http://h:1"], "no prefill engines"),
            (
                &["--aggregated-selector=a=b", "--backend=http://h:1"],
                "both selectors and --backend",
            ),
            (
                &["--backend=other=http://h:1", "--aggregated-selector=a"],
                "which no --model names",
            ),
            (
                &[
                    "--model=a=aggregated:x",
                    "--model=b=aggregated:y",
                    "--backend=http://h:1",
                ],
                "names no model",
            ),
            (
                &["--model=a=aggregated:x", "--model=a=aggregated:y"],
                "given twice",
            ),
            (&["--model=a=router:x"], "no role"),
            (&["--model=a=decode:"], "empty selector"),
            (&["--backend=https://h:1"], "over http"),
            (&["--backend=127.0.0.1:80"], "has no URL"),
        ] {
            let error = format!("{:#}", engines(words).unwrap_err());
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }
}
