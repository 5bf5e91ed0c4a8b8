//! The directory of exported names (N3): how a NIC asks another one for a segment.
//!
//! | kind | class | sent by | body |
//! |---|---|---|---|
//! | [`kind::IMPORT_REQUEST`] | Control | importer | [`ImportRequest`] |
//! | [`kind::IMPORT_RESPONSE`] | Control | exporter | [`ImportResponse`] |
//!
//! Drivers export and import with requests on the control virtqueue
//! ([`crate::control`]).

use zerocopy::little_endian::{U16, U32, U64};

use crate::ids::Secret;
use crate::wire::Body;

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::ImportRequest`].
    pub const IMPORT_REQUEST: u8 = 0xb0;
    /// [`super::ImportResponse`].
    pub const IMPORT_RESPONSE: u8 = 0xb1;
}

layouts! {
    /// Body of [`kind::IMPORT_REQUEST`]: does the process on the destination port export this name?
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | name                              |
    ///   8  | wait_ms         | reserved        |
    ///  16  | secret                            | … 32
    /// ```
    #[bytes(32)]
    pub struct ImportRequest {
        /// Name of the segment.
        pub name: U64,
        /// How long to wait for it, in milliseconds.
        pub wait_ms: U32,
        /// Zero.
        pub reserved: U32,
        /// What the exporter may ask for; zero: nothing. Captures do not show it.
        pub secret: Secret,
    }

    /// Body of [`kind::IMPORT_RESPONSE`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | address                           |
    ///   8  | length                            |
    ///  16  | key                               |
    ///  24  | status          | access          |
    ///  32  | segment| reserved                 |
    /// ```
    #[bytes(40)]
    pub struct ImportResponse {
        /// First virtual address; zero unless `Ok`, as all that follows but the status.
        pub address: U64,
        /// Length in bytes.
        pub length: U64,
        /// Key of the segment.
        pub key: U64,
        /// A [`crate::Status`] code.
        pub status: U32,
        /// [`crate::Access`] that it grants.
        pub access: U32,
        /// Index of the segment in its process.
        pub segment: U16,
        /// Zero.
        pub reserved: [U16; 3],
    }
}

const _: () = assert!(core::mem::offset_of!(ImportRequest, secret) == 16);
const _: () = assert!(core::mem::offset_of!(ImportResponse, status) == 24);

impl Body for ImportRequest {
    const KIND: u8 = kind::IMPORT_REQUEST;

    fn is_valid(&self) -> bool {
        self.reserved.get() == 0
    }
}

impl Body for ImportResponse {
    const KIND: u8 = kind::IMPORT_RESPONSE;

    fn is_valid(&self) -> bool {
        self.reserved.iter().all(|word| word.get() == 0)
    }
}
