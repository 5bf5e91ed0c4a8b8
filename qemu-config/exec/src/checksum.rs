//! A byte stream that ends with its own SHA-256.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

/// Bytes of the checksum.
const LEN: usize = 32;

/// Passes bytes on and, at the end, their checksum.
pub(crate) struct ChecksumWriter<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> ChecksumWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }

    /// Writes the checksum.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.inner.write_all(&self.hash.finalize())?;
        self.inner.flush()
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Gives back what was written, without the checksum, and fails at the end if that is
/// wrong. It always holds back the last 32 bytes, which may be the checksum.
pub(crate) struct ChecksumReader<R> {
    inner: R,
    hash: Sha256,
    held: Vec<u8>,
}

impl<R: Read> ChecksumReader<R> {
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

impl<R: Read> Read for ChecksumReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while self.held.len() <= LEN {
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
        let given = (self.held.len() - LEN).min(out.len());
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

    fn summed(content: &[u8]) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut writer = ChecksumWriter::new(&mut stream);
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
        stream
    }

    proptest! {
        #[test]
        fn content_comes_back(content in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let mut found = Vec::new();
            ChecksumReader::new(&summed(&content)[..]).read_to_end(&mut found).unwrap();
            prop_assert_eq!(found, content);
        }

        #[test]
        fn a_changed_byte_or_a_lost_end_is_noticed(
            content in proptest::collection::vec(any::<u8>(), 0..500),
            at in any::<proptest::sample::Index>(),
            cut in any::<bool>(),
        ) {
            let mut stream = summed(&content);
            let at = at.index(stream.len());
            if cut { stream.truncate(at) } else { stream[at] ^= 1 }
            let error = ChecksumReader::new(&stream[..]).read_to_end(&mut Vec::new()).unwrap_err();
            prop_assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
