//! The shape of the workspace: which crate may depend on which, and what the pure ones never see.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Arrows between members; nothing else may point. Development dependencies on the testbed are free.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "coppice-operator",
        &[
            "coppice-operator-api",
            "coppice-operator-plan",
            "coppice-runtime",
        ],
    ),
    ("coppice-operator-api", &[]),
    ("coppice-operator-plan", &[]),
    (
        "coppice-init",
        &["coppice-operator-api", "coppice-operator-plan"],
    ),
    (
        "coppice-scaler",
        &[
            "coppice-scaler-api",
            "coppice-scaler-plan",
            "coppice-signals",
            "coppice-operator-api",
            "coppice-runtime",
        ],
    ),
    ("coppice-scaler-api", &[]),
    ("coppice-scaler-plan", &[]),
    (
        "coppice-adapter",
        &[
            "coppice-exposition",
            "coppice-signals",
            "coppice-scaler-api",
            "coppice-runtime",
        ],
    ),
    ("coppice-exposition", &[]),
    ("coppice-signals", &["coppice-exposition"]),
    (
        "coppice-loadtest",
        &[
            "coppice-engine",
            "coppice-scaler-plan",
            "coppice-operator-plan",
            "coppice-exposition",
            "coppice-runtime",
        ],
    ),
    ("coppice-engine", &[]),
    ("coppice-runtime", &[]),
    (
        "coppice-testbed",
        &["coppice-engine", "coppice-operator-plan"],
    ),
];

/// Everything a pure crate may link; an addition here is a decision, not a convenience.
const PURE: &[(&str, &[&str])] = &[
    ("coppice-operator-plan", &["jiff", "serde", "thiserror"]),
    ("coppice-scaler-plan", &["jiff", "serde", "thiserror"]),
    (
        "coppice-engine",
        &[
            "serde",
            "thiserror",
            "rand",
            "rand_chacha",
            "rand_distr",
            "serde_json",
        ],
    ),
    ("coppice-exposition", &["thiserror"]),
];

/// Words that mean a clock, a file, the environment, the network or a runtime.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "Timestamp::now",
    "Zoned::now",
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "std::thread",
    "tokio::",
    "HashMap",
    "HashSet",
    "tracing::",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the testbed lies in the workspace")
        .to_path_buf()
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap()
}

/// Names of the normal and build dependencies of each member.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    metadata()
        .packages
        .iter()
        .map(|package| {
            let names = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind != DependencyKind::Development)
                .map(|dependency| dependency.name.clone())
                .collect();
            (package.name.to_string(), names)
        })
        .collect()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn members_depend_on_each_other_only_along_the_arrows() {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (member, names) in dependencies() {
        let allowed = arrows
            .get(member.as_str())
            .unwrap_or_else(|| panic!("{member} has no entry in ARROWS"));
        for name in names.iter().filter(|name| name.starts_with("coppice-")) {
            assert!(
                allowed.contains(&name.as_str()),
                "{member} may not depend on {name}; allowed: {allowed:?}"
            );
        }
    }
}

#[test]
fn pure_crates_link_only_their_short_list() {
    let all = dependencies();
    for (member, allowed) in PURE {
        for name in &all[*member] {
            assert!(
                allowed.contains(&name.as_str()),
                "{member} is pure and may not depend on {name}; allowed: {allowed:?}"
            );
        }
    }
}

#[test]
fn pure_crates_read_no_clock_file_environment_or_network() {
    for package in metadata().packages {
        if !PURE
            .iter()
            .any(|(member, _)| *member == package.name.as_str())
        {
            continue;
        }
        let folder = package
            .manifest_path
            .parent()
            .unwrap()
            .as_std_path()
            .to_path_buf();
        let mut files = Vec::new();
        rust_files(&folder.join("src"), &mut files);
        assert!(!files.is_empty(), "{} has no sources", package.name);
        for file in files {
            if file.components().any(|part| part.as_os_str() == "tests")
                || file.ends_with("tests.rs")
            {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            // Tests stand at the end of a file, by convention.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (number, line) in code.lines().enumerate() {
                if line.trim_start().starts_with("//") {
                    continue;
                }
                for word in IMPURE {
                    assert!(
                        !line.contains(word),
                        "{}:{}: a pure crate names {word}",
                        file.display(),
                        number + 1
                    );
                }
            }
        }
    }
}

#[test]
fn pure_crates_carry_the_clippy_rules_that_ban_clocks() {
    for package in metadata().packages {
        if !PURE
            .iter()
            .any(|(member, _)| *member == package.name.as_str())
        {
            continue;
        }
        let rules = package.manifest_path.parent().unwrap().join("clippy.toml");
        let text = std::fs::read_to_string(rules.as_std_path()).unwrap_or_else(|error| {
            panic!("{rules} is what makes clippy refuse clocks here: {error}")
        });
        let rules: toml::Table = text.parse().unwrap();
        let banned = format!(
            "{}{}",
            rules["disallowed-methods"], rules["disallowed-types"]
        );
        for path in [
            "jiff::Timestamp::now",
            "std::time::Instant",
            "std::time::SystemTime",
            "std::collections::HashMap",
        ] {
            assert!(
                banned.contains(path),
                "{}: clippy.toml does not ban {path}",
                package.name
            );
        }
    }
}

#[test]
fn versions_stand_in_the_root_manifest_only() {
    for package in metadata().packages {
        let text = std::fs::read_to_string(package.manifest_path.as_std_path()).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in manifest
                .get(section)
                .and_then(toml::Value::as_table)
                .into_iter()
                .flatten()
            {
                let inherits = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
                assert!(
                    inherits,
                    "{}: {section}.{name} must say workspace = true",
                    package.name
                );
            }
        }
    }
}

#[test]
fn no_second_cryptography_or_yaml_library_is_locked() {
    let lock: toml::Table = std::fs::read_to_string(root().join("Cargo.lock"))
        .unwrap()
        .parse()
        .unwrap();
    let names: Vec<&str> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    for banned in ["ring", "openssl-sys", "native-tls", "serde_yaml"] {
        assert!(
            !names.contains(&banned),
            "Cargo.lock holds {banned}, which deny.toml bans"
        );
    }
    for single in [
        "kube",
        "kube-core",
        "k8s-openapi",
        "rustls",
        "hyper",
        "tokio",
    ] {
        let count = names.iter().filter(|name| **name == single).count();
        assert_eq!(count, 1, "Cargo.lock holds {count} versions of {single}");
    }
}

#[test]
fn nothing_names_one_machines_paths() {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files failed");
    // Written apart so that this file does not find itself.
    let needles: Vec<String> = ["work", "root"]
        .iter()
        .map(|folder| format!("/{folder}/"))
        .collect();
    for name in String::from_utf8(listed.stdout)
        .unwrap()
        .split('\0')
        .filter(|name| !name.is_empty())
    {
        let path = root().join(name);
        if name.ends_with(".gz") || !path.is_file() {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for needle in &needles {
            for (number, line) in text.lines().enumerate() {
                let found = line.match_indices(needle.as_str()).any(|(at, _)| {
                    // A path that goes on from something else (api/root/x, https://…/work/…) is not a machine's.
                    !line[..at]
                        .chars()
                        .next_back()
                        .is_some_and(|before| before.is_alphanumeric() || "-_./:}".contains(before))
                });
                assert!(
                    !found,
                    "{name}:{}: names a folder of one machine ({needle})",
                    number + 1
                );
            }
        }
    }
}
