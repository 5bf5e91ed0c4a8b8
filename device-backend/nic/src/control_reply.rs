//! Bytes of requests and replies on the control virtqueue ([`qnic_abi::control`]).

use qnic_abi::control::{ReplyHeader, REPLY_BYTES};
use qnic_abi::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A reply.
pub(crate) type Reply = [u8; REPLY_BYTES];

/// A reply with this status and body.
pub(crate) fn reply(status: Status, body: &[u8]) -> Reply {
    let header = ReplyHeader {
        status: status.code().into(),
        reserved: 0.into(),
    };
    let mut bytes = [0; REPLY_BYTES];
    let (front, rest) = bytes.split_at_mut(size_of::<ReplyHeader>());
    front.copy_from_slice(header.as_bytes());
    rest[..body.len()].copy_from_slice(body);
    bytes
}

/// The body of a request; what is behind it must be zero.
pub(crate) fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, Status> {
    let (body, rest) = T::read_from_prefix(bytes).map_err(|_| Status::Malformed)?;
    match rest.iter().all(|byte| *byte == 0) {
        true => Ok(body),
        false => Err(Status::Malformed),
    }
}
