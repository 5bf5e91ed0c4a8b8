//! A byte stream that ends with its own SHA-256.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

const SEAL: usize = 32;

/// Passes bytes on and, at the end, their checksum.
pub(crate) struct SealWriter<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> SealWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }

    /// Writes the seal.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let seal = self.hash.finalize();
        self.inner.write_all(&seal)?;
        self.inner.flush()
    }
}

impl<W: Write> Write for SealWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Gives back what was written, without the seal, and fails at the end if it is
/// broken. It always holds back the last 32 bytes, which may be the seal.
pub(crate) struct SealReader<R> {
    inner: R,
    hash: Sha256,
    held: Vec<u8>,
}

impl<R: Read> SealReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            held: Vec::new(),
        }
    }

    fn check(&self) -> io::Result<usize> {
        if self.hash.clone().finalize().as_slice() == self.held {
            return Ok(0);
        }
        let message = "the data was cut short or changed on its way (its checksum does not match)";
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

impl<R: Read> Read for SealReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while self.held.len() <= SEAL {
            let start = self.held.len();
            self.held.resize(start + crate::wire::CHUNK, 0);
            let read = self.inner.read(&mut self.held[start..]);
            self.held.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return self.check(),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        let given = (self.held.len() - SEAL).min(out.len());
        out[..given].copy_from_slice(&self.held[..given]);
        self.hash.update(&out[..given]);
        self.held.drain(..given);
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(content: &[u8]) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut writer = SealWriter::new(&mut stream);
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
        stream
    }

    proptest! {
        #[test]
        fn content_comes_back(content in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let mut found = Vec::new();
            SealReader::new(&sealed(&content)[..]).read_to_end(&mut found).unwrap();
            prop_assert_eq!(found, content);
        }

        #[test]
        fn a_changed_byte_or_a_lost_end_is_noticed(
            content in proptest::collection::vec(any::<u8>(), 0..500),
            at in any::<proptest::sample::Index>(),
            cut in any::<bool>(),
        ) {
            let mut stream = sealed(&content);
            let at = at.index(stream.len());
            if cut { stream.truncate(at) } else { stream[at] ^= 1 }
            let error = SealReader::new(&stream[..]).read_to_end(&mut Vec::new()).unwrap_err();
            prop_assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
