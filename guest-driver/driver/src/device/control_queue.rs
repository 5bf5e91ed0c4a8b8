//! Requests to the NIC, encoded, and their responses, decoded ([`qnic_abi::control`]).

use qnic_abi::control::{Opcode, ReplyHeader, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::{Status, VniId};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::platform::{Platform, RequestError, Timeout};

/// A request, ready to be sent.
pub(crate) struct Request(pub(crate) [u8; REQUEST_BYTES]);

/// A response.
pub(crate) struct Response([u8; REPLY_BYTES]);

impl Request {
    /// A request with a body.
    pub(crate) fn new<T: IntoBytes + Immutable>(opcode: Opcode, vni: VniId, body: &T) -> Self {
        const { assert!(size_of::<RequestHeader>() + size_of::<T>() <= REQUEST_BYTES) };
        let header = RequestHeader {
            opcode: (opcode as u32).into(),
            vni: vni.0.into(),
            reserved: 0.into(),
        };
        let mut bytes = [0; REQUEST_BYTES];
        let (front, rest) = bytes.split_at_mut(size_of::<RequestHeader>());
        front.copy_from_slice(header.as_bytes());
        for (to, from) in rest.iter_mut().zip(body.as_bytes()) {
            *to = *from;
        }
        Request(bytes)
    }

    /// A request without a body.
    pub(crate) fn bare(opcode: Opcode, vni: VniId) -> Self {
        Self::new(opcode, vni, &[0u8; 0])
    }

    /// Sends it and waits for the response.
    pub(crate) fn send<P: Platform>(
        &self,
        platform: &P,
        timeout: Timeout,
    ) -> Result<Response, RequestError> {
        platform.request(&self.0, timeout).map(Response)
    }
}

impl Response {
    /// Its status; `None` if there is no such status.
    pub(crate) fn status(&self) -> Option<Status> {
        let (header, _) = ReplyHeader::read_from_prefix(&self.0).ok()?;
        Status::try_from(header.status.get()).ok()
    }

    /// Its body.
    pub(crate) fn body<T: FromBytes>(&self) -> Option<T> {
        let rest = self.0.get(size_of::<ReplyHeader>()..)?;
        T::read_from_prefix(rest).ok().map(|(body, _)| body)
    }
}
