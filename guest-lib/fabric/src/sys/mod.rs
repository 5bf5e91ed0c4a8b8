//! What libfabric declares in its headers: structures, function tables and numbers, as of version 2.1.
//!
//! ```text
//!   table   size │ call │ call │ …        a table of calls begins with its size
//!   object  fid { class, context, ops } │ tables of its class │ what the provider keeps
//!                           └── table of close, bind, control, …
//! ```
//! Version 1.17 has the same structures; some of its tables and attributes end earlier. A caller looks
//! at a call only if the table's size says that it is there, so longer tables do no harm. Fields of
//! attributes that 1.17 does not have are never read or written here.
//!
//! # Invariants
//! - Sizes are those that a C compiler says for x86-64, asserted below each structure.
//! - A slot of a table is a function of Rust, which is never null. What the provider does not do is a
//!   stub that returns -FI_ENOSYS.

mod attributes;
mod numbers;
mod objects;
mod plain;
mod tables;

pub(crate) use attributes::*;
pub(crate) use numbers::*;
pub(crate) use objects::*;
pub(crate) use tables::*;
