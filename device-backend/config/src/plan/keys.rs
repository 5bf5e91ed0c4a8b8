//! Key pairs of device processes: X25519, as text and as files.
//!
//! A key is 32 bytes, in base64 where people see it. The private key stands in a file that
//! only its owner can read; `cargo qnic keys` makes it:
//!
//! ```text
//! # Private key of a qnic device process: keep it secret. Its public key is
//! # LbZ…=
//! 8Fs…=
//! ```

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

use base64::prelude::{Engine, BASE64_STANDARD};
use curve25519_dalek::montgomery::MontgomeryPoint;
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

const KEY_BYTES: usize = 32;

/// Longest file that is taken for a private key.
const MAX_FILE: u64 = 4096;

/// Bits of a file's mode that let others than its owner at it.
const OTHERS: u32 = 0o077;

/// What a process is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// What a process shows that it is itself with.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; KEY_BYTES]);

/// A text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a key of 44 characters, as \"cargo qnic keys\" prints it")]
pub struct NotAKey;

/// A private key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file cannot be read or made.
    #[error("cannot {1}: {0}")]
    Io(std::io::Error, &'static str),
    /// Others than the owner can read it.
    #[error("others than its owner can use it (its mode is {0:03o}): chmod 600 FILE")]
    Exposed(u32),
    /// It has something else in it.
    #[error("it is no private key: make one with \"cargo qnic keys new FILE\"")]
    NotAKey,
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    NoRandom,
}

fn parse(text: &str) -> Result<[u8; KEY_BYTES], NotAKey> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| NotAKey)?;
    bytes.try_into().map_err(|_| NotAKey)
}

impl PublicKey {
    /// The bytes that it consists of.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let key = PublicKey(parse(text)?);
        // Whether a key keeps a secret does not depend on the other one.
        let other = PrivateKey([1; KEY_BYTES]);
        other.shared_with(&key).map(|_| key).ok_or(NotAKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

impl PrivateKey {
    /// A key that consists of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        PrivateKey(bytes)
    }

    /// A new key, from the system's random numbers.
    ///
    /// # Errors
    /// Returns [`KeyError::NoRandom`] if it gives none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|_| KeyError::NoRandom)?;
        Ok(PrivateKey(bytes))
    }

    /// The other half of the pair.
    pub fn public(&self) -> PublicKey {
        PublicKey(MontgomeryPoint::mul_base_clamped(self.0).to_bytes())
    }

    /// What only the two owners of a pair of keys can compute. `None` for the few public keys
    /// with which any process can, as the result is always zero (RFC 7748, section 6.1).
    pub fn shared_with(&self, other: &PublicKey) -> Option<[u8; KEY_BYTES]> {
        let shared = MontgomeryPoint(other.0).mul_clamped(self.0).to_bytes();
        (shared != [0; KEY_BYTES]).then_some(shared)
    }

    /// The bytes that it consists of.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Reads the key in `file`.
    ///
    /// # Errors
    /// Returns an error if there is none, or if others than its owner can read it.
    pub fn read(file: &Path) -> Result<Self, KeyError> {
        let cannot = |error| KeyError::Io(error, "read it");
        let opened = File::open(file).map_err(cannot)?;
        // The mode of what was opened: the name may be another file's by now.
        let mode = opened.metadata().map_err(cannot)?.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(KeyError::Exposed(mode));
        }
        let mut text = String::new();
        let read = opened.take(MAX_FILE).read_to_string(&mut text);
        read.map_err(cannot)?;
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        match (lines.next().map(parse), lines.next()) {
            (Some(Ok(bytes)), None) => Ok(PrivateKey(bytes)),
            _ => Err(KeyError::NotAKey),
        }
    }

    /// Writes the key to `file`, which only its owner can read and which must not be there.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn write_new(&self, file: &Path) -> Result<(), KeyError> {
        let text = format!(
            "# Private key of a qnic device process: keep it secret. Its public key is\n# {}\n{}\n",
            self.public(),
            BASE64_STANDARD.encode(self.0)
        );
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(file);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| KeyError::Io(error, "make it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_through_a_file_that_only_its_owner_reads() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let key = PrivateKey::generate().unwrap();
        key.write_new(&file).unwrap();
        assert_eq!(PrivateKey::read(&file).unwrap(), key);
        let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let error = key.write_new(&file).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        for exposed in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(exposed)).unwrap();
            let error = PrivateKey::read(&file).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(error.contains(&format!("{exposed:03o}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let key = BASE64_STANDARD.encode([1; 32]);
        let two = format!("{key}\n{key}");
        for text in ["", "# only a comment", "secret", &key[1..], &two] {
            let _ = std::fs::remove_file(&file);
            let mut options = OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(0o600).open(&file);
            opened.unwrap().write_all(text.as_bytes()).unwrap();
            let error = PrivateKey::read(&file).unwrap_err();
            assert!(matches!(error, KeyError::NotAKey), "{text}: {error}");
        }
        let one = [&[1], &[0; 31][..]].concat();
        for weak in [vec![0; 32], one, vec![1; 31], vec![]] {
            let text = BASE64_STANDARD.encode(weak);
            assert_eq!(text.parse::<PublicKey>(), Err(NotAKey), "{text}");
        }
    }

    /// X25519 as RFC 7748 has it (section 6.1), and as both ends compute it.
    #[test]
    fn the_pair_of_a_key_is_the_standards() {
        let private = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2,
            0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5,
            0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let [a, b] = [private, [2; 32]].map(PrivateKey::from_bytes);
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert_eq!(a.public().to_string(), public);
        assert_eq!(public.parse(), Ok(a.public()));
        assert_eq!(a.shared_with(&b.public()), b.shared_with(&a.public()));
        assert_eq!(format!("{a:?}"), "PrivateKey(…)");
    }
}
