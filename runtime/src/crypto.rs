//! The one cryptography provider of the process.

/// Makes aws-lc-rs the provider that every rustls configuration of this process uses.
///
/// Call it first in `main` and at the start of tests that use TLS; further calls change nothing.
pub fn install() {
    // An error says that a provider is installed already, which is what we want.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
}
