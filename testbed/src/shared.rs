//! One control plane for all tests of a binary.

use tokio::sync::OnceCell;

use crate::cluster::Cluster;
use crate::profile::Profile;
use crate::start::StartError;

/// The control plane that all callers of this process share, started by the first of them. It ends with the process.
///
/// Tests keep out of each other's way by a namespace of their own ([`Cluster::namespace`]); a test that needs nodes,
/// cluster-wide objects or a stopped program for itself starts its own [`Cluster`].
///
/// # Errors
///
/// See [`StartError`]. The next caller tries again.
pub async fn shared(profile: Profile) -> Result<&'static Cluster, StartError> {
    static NATIVE: OnceCell<Cluster> = OnceCell::const_new();
    static NATIVE_FLAT: OnceCell<Cluster> = OnceCell::const_new();
    static PLAIN: OnceCell<Cluster> = OnceCell::const_new();
    let cell = match profile {
        Profile::Native => &NATIVE,
        Profile::NativeFlat => &NATIVE_FLAT,
        Profile::Plain => &PLAIN,
    };
    cell.get_or_try_init(|| Cluster::start(profile)).await
}
