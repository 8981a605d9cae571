//! Which server a body comes from, by the names in it.

use coppice_exposition::{Consumer, Limits, Refused, Sample, read};

use super::{ENGINES, Engine, Tier};

/// What a body was recognised as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recognition {
    /// One bit for each entry of [`ENGINES`].
    found: u32,
    /// Whether there was any sample at all.
    has_samples: bool,
}

/// Finds out which server's series a body holds.
///
/// Looks at names alone: help texts and labels change too often. Frontends hide what else is in their bodies, since that
/// describes their parts; a worker is one together with the engine inside.
///
/// # Errors
/// The body is no exposition, or exceeds a limit.
pub fn recognise(body: &[u8], limits: &Limits) -> Result<Recognition, Refused> {
    let mut names = Names(Recognition {
        found: 0,
        has_samples: false,
    });
    read(body, limits, &mut names)?;
    Ok(names.0)
}

struct Names(Recognition);

impl<'t> Consumer<'t> for Names {
    type Key = ();

    fn select(&mut self, name: &[u8]) -> Option<()> {
        self.0.has_samples = true;
        for (index, engine) in ENGINES.iter().enumerate() {
            if engine
                .prefixes
                .iter()
                .any(|prefix| name.starts_with(prefix.as_bytes()))
            {
                self.0.found |= 1 << index;
            }
        }
        None
    }

    fn sample(&mut self, (): (), _: &Sample<'t, '_>) {}
}

impl Recognition {
    /// The servers, wrappers first; none if nothing known was found.
    pub fn engines(self) -> impl Iterator<Item = &'static Engine> + Clone {
        let all = ENGINES
            .iter()
            .enumerate()
            .filter(move |(index, _)| self.found & (1 << index) != 0);
        let frontend = all.clone().any(|(_, engine)| engine.tier == Tier::Frontend);
        all.map(|(_, engine)| *engine)
            .filter(move |engine| !frontend || engine.tier == Tier::Frontend)
    }

    /// Whether both name the same servers.
    #[must_use]
    pub const fn is_same_server(self, other: Self) -> bool {
        self.found == other.found
    }

    /// Whether it names a server that the other one does not. A body that merely lacks something may be cut short.
    #[must_use]
    pub const fn is_other_than(self, other: Self) -> bool {
        self.found & !other.found != 0
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
        assert_eq!(name("vllm:num_requests_running 1\n"), "vllm");
        assert_eq!(name("vllm_num_requests_running 1\n"), "vllm");
        assert_eq!(name("sglang_num_running_reqs 1\n"), "sglang");
        assert_eq!(name("llamacpp:requests_processing 1\n"), "llama.cpp");
        assert_eq!(
            name("dynamo_component_x 1\nvllm:x 1\n"),
            "dynamo-worker+vllm"
        );
        assert_eq!(
            name("dynamo_component_x 1\ndynamo_frontend_x 1\n"),
            "dynamo-frontend"
        );
        assert_eq!(name("nginx_up 1\n# TYPE vllm:x gauge\n"), "unknown");
    }

    #[test]
    fn an_empty_body_is_unknown_yet() {
        let recognition = recognise(b"# EOF\n", &Limits::default()).unwrap();
        assert!(recognition.is_unknown() && !recognition.has_samples());
        assert!(recognise(b"<html>", &Limits::default()).is_err());
    }
}
