//! Where things lie: the control-plane binary and the instances' folders.

use std::env;
use std::path::PathBuf;

/// Names the control-plane binary when set.
pub(crate) const CONTROL_PLANE_VARIABLE: &str = "COPPICE_CONTROLPLANE";
/// Names the folder of all instances when set.
pub(crate) const ROOT_VARIABLE: &str = "COPPICE_TESTBED_DIR";

/// There is no control-plane binary where it was looked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "no control-plane binary at {}; build it with `make controlplane` or name one in {CONTROL_PLANE_VARIABLE}",
    path.display()
)]
pub struct ControlPlaneMissing {
    /// Where it was looked for.
    pub path: PathBuf,
}

/// The binary that is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl: `$COPPICE_CONTROLPLANE`,
/// else `coppice/bin/controlplane` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`).
///
/// # Errors
///
/// There is no file at that place.
pub fn control_plane_program() -> Result<PathBuf, ControlPlaneMissing> {
    let path = env::var_os(CONTROL_PLANE_VARIABLE).map_or_else(
        || user_folder("XDG_CACHE_HOME", ".cache").join("coppice/bin/controlplane"),
        PathBuf::from,
    );
    if path.is_file() {
        Ok(path)
    } else {
        Err(ControlPlaneMissing { path })
    }
}

/// The folder in which every instance has its own: `$COPPICE_TESTBED_DIR`, else `coppice/testbed` in the user's state
/// folder (`$XDG_STATE_HOME`, `~/.local/state`).
#[must_use]
pub fn default_root() -> PathBuf {
    env::var_os(ROOT_VARIABLE).map_or_else(
        || user_folder("XDG_STATE_HOME", ".local/state").join("coppice/testbed"),
        PathBuf::from,
    )
}

fn user_folder(variable: &str, below_home: &str) -> PathBuf {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map_or_else(
            || {
                env::var_os("HOME")
                    .map_or_else(env::temp_dir, PathBuf::from)
                    .join(below_home)
            },
            PathBuf::from,
        )
}
