//! The shape of the workspace: which crate may depend on which, and what the pure ones never see.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test stops where it cannot go on"
)]

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
            "coppice-simulation",
            "coppice-scaler-plan",
            "coppice-operator-plan",
            "coppice-exposition",
            "coppice-runtime",
        ],
    ),
    ("coppice-engine", &[]),
    (
        "coppice-simulation",
        &["coppice-engine", "coppice-scaler-plan"],
    ),
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
    (
        "coppice-simulation",
        &[
            "coppice-engine",
            "coppice-scaler-plan",
            "jiff",
            "rand",
            "rand_chacha",
            "rand_distr",
            "serde",
            "thiserror",
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

/// What each pure crate's clippy.toml bans. [`IMPURE`] reads the text; clippy sees through `use` and type aliases.
const BANNED: &[&str] = &[
    "jiff::Timestamp::now",
    "jiff::Zoned::now",
    "std::env::var",
    "std::fs::read",
    "std::fs::read_to_string",
    "std::thread::sleep",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::fs::File",
    "std::net::TcpStream",
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

/// The lines of a file with their numbers from 0, without the items that are compiled for tests only.
fn without_tests(text: &str) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let mut in_tests = false;
    for (number, line) in text.lines().enumerate() {
        if line == "#[cfg(test)]" {
            in_tests = true;
        } else if in_tests {
            // rustfmt ends an item at the margin: `}` alone, or `mod tests;`.
            in_tests = line.starts_with([' ', '#']) || !line.ends_with(['}', ';']);
        } else {
            kept.push((number, line));
        }
    }
    kept
}

/// What deny.toml says; this test holds it against the workspace also where cargo-deny is not installed.
fn deny() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml"))
        .unwrap()
        .parse()
        .unwrap()
}

fn text(value: &toml::Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("deny.toml holds {value} where a text is expected"))
        .to_owned()
}

fn texts(value: &toml::Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(text).collect()
}

/// A package that is really built: its name, version and switched-on features.
struct Built {
    name: String,
    version: String,
    features: BTreeSet<String>,
}

/// Everything that a build of the workspace and its tests compiles, on each target of deny.toml.
///
/// Asked of `cargo tree`, which resolves features as a build does. Cargo.lock and `cargo metadata` also list optional packages that
/// nothing switches on (`ring` under rustls-webpki and quinn-proto), and they are no more than a name.
fn built() -> Vec<Built> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut built = Vec::new();
    for target in texts(&deny()["graph"]["targets"]) {
        let tree = std::process::Command::new(&cargo)
            .args(["tree", "--workspace", "--locked", "--target", &target])
            .args(["--edges=normal,build,dev", "--prefix=none", "--no-dedupe"])
            .arg("--format={p}|{f}")
            .current_dir(root())
            .output()
            .unwrap();
        assert!(
            tree.status.success(),
            "cargo tree --target {target} failed: {}",
            String::from_utf8_lossy(&tree.stderr)
        );
        let listed = String::from_utf8(tree.stdout).unwrap();
        // `kube v5.0.0|client,derive`, once for each way that leads to it.
        for line in listed.lines().collect::<BTreeSet<_>>() {
            let (package, features) = line.split_once('|').unwrap_or((line, ""));
            let mut words = package.split(' ');
            let (Some(name), Some(version)) = (words.next(), words.next()) else {
                continue;
            };
            built.push(Built {
                name: name.to_owned(),
                version: version.to_owned(),
                features: features.split(',').map(str::to_owned).collect(),
            });
        }
    }
    built
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
            for (number, line) in without_tests(&text) {
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
    let shared: toml::Table = std::fs::read_to_string(root().join("clippy.toml"))
        .unwrap()
        .parse()
        .unwrap();
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
        let mut rules: toml::Table = text.parse().unwrap();
        let mut banned = BTreeSet::new();
        for section in ["disallowed-methods", "disallowed-types"] {
            let list = rules
                .remove(section)
                .unwrap_or_else(|| panic!("{}: clippy.toml has no {section}", package.name));
            banned.extend(
                list.as_array()
                    .unwrap()
                    .iter()
                    .map(|rule| rule["path"].as_str().unwrap().to_owned()),
            );
        }
        assert_eq!(
            banned,
            BANNED.iter().map(|path| (*path).to_owned()).collect(),
            "{}: clippy.toml bans these instead of what every pure crate bans",
            package.name
        );
        // A member's clippy.toml replaces the root's, so what the root allows in tests stands here again.
        assert_eq!(
            rules, shared,
            "{}: clippy.toml differs from the root's in more than the bans",
            package.name
        );
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
fn nothing_that_deny_toml_bans_is_built() {
    let built = built();
    let deny = deny();
    let mut asked = 0;
    for ban in deny["bans"]["deny"].as_array().unwrap() {
        // A ban with wrappers allows the package below those: see the next test.
        if ban.get("wrappers").is_some() {
            continue;
        }
        asked += 1;
        let banned = text(&ban["name"]);
        if ban.get("deny-multiple-versions").is_some() {
            assert_one_version(&built, &banned);
            continue;
        }
        assert!(
            !built.iter().any(|package| package.name == banned),
            "{banned} is built, and deny.toml bans it ({}): cargo tree -i {banned} shows who asks for it",
            ban["reason"]
        );
    }
    for ban in deny["bans"]["features"].as_array().unwrap() {
        asked += 1;
        let name = text(&ban["name"]);
        let of_it: Vec<&Built> = built
            .iter()
            .filter(|package| package.name == name)
            .collect();
        assert!(
            !of_it.is_empty(),
            "deny.toml bans features of {name}, which is not built at all"
        );
        for feature in texts(&ban["deny"]) {
            assert!(
                !of_it
                    .iter()
                    .any(|package| package.features.contains(&feature)),
                "{name} is built with the feature {feature}, which deny.toml bans"
            );
        }
    }
    assert!(asked > 0, "deny.toml bans nothing");
}

#[test]
fn a_ban_with_wrappers_names_who_may_depend_on_the_package() {
    let all = dependencies();
    let mut asked = 0;
    for ban in deny()["bans"]["deny"].as_array().unwrap() {
        let Some(wrappers) = ban.get("wrappers").map(texts) else {
            continue;
        };
        asked += 1;
        let banned = text(&ban["name"]);
        for (member, names) in &all {
            assert!(
                !names.contains(&banned) || wrappers.contains(member),
                "{member} may not depend on {banned}: deny.toml allows {wrappers:?}"
            );
        }
        for wrapper in &wrappers {
            assert!(
                all.contains_key(wrapper),
                "deny.toml lets {wrapper} depend on {banned}, but there is no such member"
            );
        }
    }
    assert!(asked > 0, "deny.toml has no ban with wrappers");
}

fn assert_one_version(built: &[Built], name: &str) {
    let of_it = built.iter().filter(|package| package.name == name);
    let versions: BTreeSet<&str> = of_it.map(|package| package.version.as_str()).collect();
    assert_eq!(versions.len(), 1, "versions of {name}: {versions:?}");
}

#[test]
fn one_version_of_each_library_whose_types_meet() {
    let built = built();
    for single in [
        "kube",
        "kube-core",
        "k8s-openapi",
        "rustls",
        "hyper",
        "tokio",
    ] {
        assert_one_version(&built, single);
    }
}

/// Everything of Rust that is kept in the repository, as one text.
fn sources() -> String {
    let listed = std::process::Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.rs",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files failed");
    let names = String::from_utf8(listed.stdout).unwrap();
    let files = names.split('\0').filter(|name| !name.is_empty());
    let texts = files.filter_map(|name| std::fs::read_to_string(root().join(name)).ok());
    texts.collect()
}

#[test]
fn every_test_that_the_table_of_requests_names_exists() {
    let table = std::fs::read_to_string(root().join("docs/scaling-requests.md")).unwrap();
    let sources = sources();
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, asked, _, tests, missing, _] = cells[..] else {
            panic!("not four columns: {row}");
        };
        assert!(
            !tests.is_empty() || !missing.is_empty(),
            "{asked}: neither a test nor what is missing"
        );
        for test in tests.split('`').skip(1).step_by(2) {
            named += 1;
            assert!(
                sources.contains(&format!("fn {test}(")),
                "{asked}: there is no test {test}"
            );
        }
    }
    assert!(named > 50, "only {named} tests are named");
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
                    // A path that goes on from something else (`api/…`, `https://…`) is not a machine's.
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
