//! The one cryptography provider of the process.

/// Makes aws-lc-rs the provider that every rustls configuration of this process uses.
///
/// Call it first in `main` and at the start of tests that use TLS; further calls change nothing.
pub fn install() {
    // An error says that a provider is installed already, which is what we want.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
}

/// SHA-256 of the parts, one behind the other.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let provider = suite.tls13().expect("a TLS 1.3 suite").common.hash_provider;
    let mut hash = provider.start();
    for part in parts {
        hash.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(hash.finish().as_ref());
    digest
}

/// Bytes that nobody can guess.
#[must_use]
pub fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .expect("the system gives randomness, or no connection could be secured either");
    bytes
}

/// Lower-case hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(u32::from(digit), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_is_the_known_digest_of_the_joined_parts() {
        let digest = hex(&sha256(&[b"a", b"bc"]));
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
