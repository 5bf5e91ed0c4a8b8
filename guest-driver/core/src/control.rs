//! Requests to the NIC, encoded, and their replies, decoded ([`qnic_abi::control`]).

use qnic_abi::control::{Opcode, ReplyHeader, RequestHeader, REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::{Status, VniId};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::platform::{Patience, Platform, RequestError};

/// How long the NIC may take for a request that it answers at once, in
/// milliseconds: beyond what a busy host takes, short enough to tell people that
/// the device process has died.
pub(crate) const REPLY_WAIT_MS: u32 = 10_000;

/// A request, ready to be sent.
pub(crate) struct Request([u8; REQUEST_BYTES]);

/// A reply.
pub(crate) struct Reply([u8; REPLY_BYTES]);

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

    /// Sends it and waits for the reply, which the NIC gives at once.
    pub(crate) fn send<P: Platform>(&self, platform: &P) -> Result<Reply, RequestError> {
        self.send_within(platform, REPLY_WAIT_MS)
    }

    /// Sends it and waits up to `limit_ms` for the reply.
    pub(crate) fn send_within<P: Platform>(
        &self,
        platform: &P,
        limit_ms: u32,
    ) -> Result<Reply, RequestError> {
        platform
            .request(&self.0, Patience::Bounded(limit_ms))
            .map(Reply)
    }

    /// Sends it and does not wait for the reply, which nobody needs.
    pub(crate) fn post<P: Platform>(&self, platform: &P) -> Result<(), RequestError> {
        platform.post(&self.0, REPLY_WAIT_MS)
    }

    /// Sends it and waits up to `wait_ms` longer than for others; signals end the wait.
    pub(crate) fn send_patiently<P: Platform>(
        &self,
        platform: &P,
        wait_ms: u32,
    ) -> Result<Reply, RequestError> {
        let patience = Patience::Interruptible(wait_ms.saturating_add(REPLY_WAIT_MS));
        platform.request(&self.0, patience).map(Reply)
    }
}

impl Reply {
    /// Its status; `None` if it is no status.
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
