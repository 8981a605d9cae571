//! Which server a body comes from, by the names in it.

use std::sync::LazyLock;

use coppice_exposition::{Consumer, Limits, Refused, Sample, read};

use super::model::{Engine, Mark, Sign, Tier};
use super::{ENGINES, Mapping, mapping};

/// The servers that are looked for: those that mappings describe, and the built-in ones.
#[derive(Debug)]
pub struct Servers {
    /// Mapped ones first, so that a mapping comes before what is built in.
    engines: Vec<&'static Engine>,
    /// Everything to be looked for, each once.
    signs: Vec<Sign>,
    /// For each mark its engine, and its signs as bits.
    marks: Vec<(usize, Wanted)>,
}

/// Bits of [`Servers::signs`].
#[derive(Debug, Clone, Copy)]
struct Wanted {
    all: u128,
    none: u128,
}

/// What a body was recognised as.
#[derive(Debug, Clone, Copy)]
pub struct Recognition {
    servers: &'static Servers,
    /// One bit for each of its engines.
    found: u64,
    /// Whether there was any sample at all.
    has_samples: bool,
}

static BUILT_IN: LazyLock<Servers> = LazyLock::new(|| Servers::of(ENGINES.to_vec()));

/// Finds out which built-in server's series a body holds.
///
/// Looks at names, and at one label: help texts and labels change too often. Frontends hide what else is in their bodies,
/// since that describes their parts; a worker is one together with the engine inside.
///
/// # Errors
/// The body is no exposition, or exceeds a limit.
pub fn recognise(body: &[u8], limits: &Limits) -> Result<Recognition, Refused> {
    Servers::built_in().recognise(body, limits)
}

impl Servers {
    /// Those that need no mapping.
    #[must_use]
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Those of these mappings, then the built-in ones. Mappings are to be checked before.
    ///
    /// A server's texts are referred to from everywhere for as long as anything is remembered of it, so what is made here
    /// stays until the process ends: a few kilobytes for each change of the mappings.
    pub(crate) fn with(mappings: &[Mapping]) -> &'static Self {
        if mappings.is_empty() {
            return Self::built_in();
        }
        let mut engines: Vec<&'static Engine> = Vec::with_capacity(mappings.len() + ENGINES.len());
        engines.extend(
            mappings.iter().map(|mapping| -> &'static Engine {
                Box::leak(Box::new(mapping::engine(mapping)))
            }),
        );
        engines.extend(ENGINES);
        Box::leak(Box::new(Self::of(engines)))
    }

    fn of(engines: Vec<&'static Engine>) -> Self {
        let mut signs: Vec<Sign> = Vec::new();
        let mut bit = |sign: Sign| {
            let index = signs.iter().position(|known| *known == sign);
            1_u128
                << index.unwrap_or_else(|| {
                    signs.push(sign);
                    signs.len() - 1
                })
        };
        let mut marks = Vec::new();
        for (index, engine) in engines.iter().enumerate() {
            for Mark {
                sign,
                with,
                without,
            } in engine.marks.iter().copied()
            {
                let wanted = Wanted {
                    all: bit(sign) | with.map_or(0, &mut bit),
                    none: without.map_or(0, &mut bit),
                };
                marks.push((index, wanted));
            }
        }
        Self {
            engines,
            signs,
            marks,
        }
    }

    /// Finds out which of these servers' series a body holds.
    ///
    /// # Errors
    /// The body is no exposition, or exceeds a limit.
    pub fn recognise(&'static self, body: &[u8], limits: &Limits) -> Result<Recognition, Refused> {
        let mut seen = Seen {
            signs: &self.signs,
            found: 0,
            has_samples: false,
        };
        read(body, limits, &mut seen)?;
        let holds = |wanted: &Wanted| {
            seen.found & wanted.all == wanted.all && seen.found & wanted.none == 0
        };
        let found = self
            .marks
            .iter()
            .filter(|(_, wanted)| holds(wanted))
            .fold(0, |found, (engine, _)| found | 1 << engine);
        Ok(Recognition {
            servers: self,
            found,
            has_samples: seen.has_samples,
        })
    }
}

/// What of the signs is in a body. Nothing is allocated for a sample.
struct Seen<'a> {
    signs: &'a [Sign],
    found: u128,
    has_samples: bool,
}

impl<'t> Consumer<'t> for Seen<'_> {
    type Key = ();

    fn select(&mut self, name: &[u8]) -> Option<()> {
        self.has_samples = true;
        let mut wants_labels = false;
        for (index, sign) in self.signs.iter().enumerate() {
            if self.found & 1 << index != 0 {
                continue;
            }
            match sign {
                Sign::Prefix(prefix) if name.starts_with(prefix.as_bytes()) => {
                    self.found |= 1 << index;
                }
                Sign::Name(wanted) if name == wanted.as_bytes() => self.found |= 1 << index,
                Sign::Label(wanted, _) if name == wanted.as_bytes() => wants_labels = true,
                Sign::Prefix(_) | Sign::Name(_) | Sign::Label(..) => {}
            }
        }
        wants_labels.then_some(())
    }

    fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
        for (index, sign) in self.signs.iter().enumerate() {
            if let Sign::Label(name, label) = sign
                && sample.name.is(name)
                && sample.label(label).is_some()
            {
                self.found |= 1 << index;
            }
        }
    }
}

impl Recognition {
    /// The servers, wrappers first; none if nothing known was found.
    pub fn engines(self) -> impl Iterator<Item = &'static Engine> + Clone {
        let all = self
            .servers
            .engines
            .iter()
            .enumerate()
            .filter(move |(index, _)| self.found & (1 << index) != 0);
        let frontend = all.clone().any(|(_, engine)| engine.tier == Tier::Frontend);
        all.map(|(_, engine)| *engine)
            .filter(move |engine| !frontend || engine.tier == Tier::Frontend)
    }

    /// Whether both name the same servers.
    #[must_use]
    pub fn is_same_server(self, other: Self) -> bool {
        let (mut one, mut two) = (self.engines(), other.engines());
        loop {
            match (one.next(), two.next()) {
                (None, None) => return true,
                (Some(one), Some(two)) if std::ptr::eq(one, two) => {}
                _ => return false,
            }
        }
    }

    /// Whether it names a server that the other one does not. A body that merely lacks something may be cut short.
    #[must_use]
    pub fn is_other_than(self, other: Self) -> bool {
        self.engines()
            .any(|engine| !other.engines().any(|known| std::ptr::eq(engine, known)))
    }

    /// Whether it was looked for among these servers.
    #[must_use]
    pub fn is_among(self, servers: &'static Servers) -> bool {
        std::ptr::eq(self.servers, servers)
    }

    /// Whether nothing known was found.
    #[must_use]
    pub const fn is_unknown(self) -> bool {
        self.found == 0
    }

    /// Whether the body has samples, so that an unknown server stays unknown.
    #[must_use]
    pub const fn has_samples(self) -> bool {
        self.has_samples
    }

    /// Whether it stands before other servers.
    #[must_use]
    pub fn is_frontend(self) -> bool {
        self.engines().any(|engine| engine.tier == Tier::Frontend)
    }

    /// The name for answers and messages: the wrapper's, and the engine's inside.
    #[must_use]
    pub fn name(self) -> String {
        let names: Vec<_> = self.engines().map(|engine| engine.name).collect();
        if names.is_empty() {
            "unknown".to_owned()
        } else {
            names.join("+")
        }
    }
}

impl PartialEq for Recognition {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.servers, other.servers)
            && (self.found, self.has_samples) == (other.found, other.has_samples)
    }
}

impl Eq for Recognition {}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(body: &str) -> String {
        recognise(body.as_bytes(), &Limits::default())
            .unwrap()
            .name()
    }

    #[test]
    fn names_decide_and_wrappers_come_first() {
        for (body, server) in [
            ("vllm:num_requests_running 1\n", "vllm"),
            ("vllm_num_requests_running 1\n", "vllm"),
            ("vllm_router_up 1\n", "unknown"),
            ("sglang_num_running_reqs 1\n", "sglang"),
            ("llamacpp:requests_processing 1\n", "llama.cpp"),
            ("dynamo_component_x 1\nvllm:x 1\n", "dynamo-worker+vllm"),
            (
                "dynamo_component_x 1\ndynamo_frontend_x 1\n",
                "dynamo-frontend",
            ),
            ("nginx_up 1\n# TYPE vllm:x gauge\n", "unknown"),
            ("smg_requests_total 1\nsglang:x 1\n", "sglang-gateway"),
            ("inference_pool_ready_pods 1\nvllm:x 1\n", "llm-d-epp"),
            ("nv_inference_count 1\n", "triton"),
            ("nv_inference_count 1\nvllm:x 1\n", "vllm+triton"),
            (
                "nv_inference_count 1\nnv_trt_llm_x 1\n",
                "triton-tensorrt-llm",
            ),
            ("ray_serve_x 1\n", "ray"),
            (
                "dynamo_work_handler_x 1\ntrtllm:request_success_total 1\n",
                "dynamo-worker+tensorrt-llm",
            ),
        ] {
            assert_eq!(name(body), server, "{body}");
        }
    }

    #[test]
    fn what_one_name_does_not_tell_a_second_one_or_a_label_does() {
        let router = "acme_inflight_requests 1\ndynamo_router_overhead_total 1\n";
        assert_eq!(name(router), "dynamo-frontend");
        let worker = format!("{router}dynamo_work_handler_queue_depth 0\n");
        assert_eq!(name(&worker), "dynamo-worker");
        assert_eq!(
            name("request_success_total{engine_type=\"undefined\"} 1\n"),
            "tensorrt-llm"
        );
        assert_eq!(
            name("request_success_total{model_name=\"m\"} 1\n"),
            "unknown"
        );
        assert_eq!(name("num_request_max 8\n"), "unknown");
        assert_eq!(name("num_request_max 8\ngpu_cache_usage_perc 0\n"), "nim");
    }

    #[test]
    fn an_empty_body_is_unknown_yet() {
        let recognition = recognise(b"# EOF\n", &Limits::default()).unwrap();
        assert!(recognition.is_unknown() && !recognition.has_samples());
        assert!(recognise(b"<html>", &Limits::default()).is_err());
    }

    #[test]
    fn there_is_room_for_the_signs_of_every_server_and_mapping() {
        let built_in = Servers::built_in();
        assert!(built_in.signs.len() + mapping::MAPPINGS * mapping::RECOGNISED_BY <= 128);
        assert!(built_in.engines.len() + mapping::MAPPINGS <= 64);
    }
}
