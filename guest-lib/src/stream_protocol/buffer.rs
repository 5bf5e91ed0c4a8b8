//! The interface to the frames, which the protocol's caller owns.

/// A frame that can be sent: room for the header, and for bytes behind it.
///
/// The protocol fills it, keeps it until the peer has it, and drops it: then the caller may use
/// the memory again. Each time the frame is sent, the caller puts a header in front of the bytes.
pub trait SendFrame {
    /// Copies bytes in, `offset` bytes behind the header. They fit in the frame.
    fn put(&mut self, offset: usize, bytes: &[u8]);

    /// Returns true while an earlier transmission still reads the frame: then its bytes must not change,
    /// and sending it again makes no sense.
    fn is_in_use(&self) -> bool;
}

/// A received frame. The protocol keeps it until its bytes are read, and drops it: then
/// the caller may use the memory again.
pub trait ReceivedFrame {
    /// Bytes that came, the header included.
    fn length(&self) -> usize;

    /// Copies bytes out, from `offset` on. They are within the length.
    fn copy_out(&self, offset: usize, bytes: &mut [u8]);
}

impl ReceivedFrame for std::vec::Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self[offset..offset + bytes.len()]);
    }
}

impl SendFrame for std::vec::Vec<u8> {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.truncate(offset);
        self.extend_from_slice(bytes);
    }

    fn is_in_use(&self) -> bool {
        false
    }
}
