//! The interface as C sees it: headers, man pages and symbols are those of the sources, and every
//! call of the library has its counterpart (X10).
//!
//! `UPDATE_EXPECT=1 cargo test -p qnic-capi --test interface` renews the files.

mod border;
mod counterparts;
mod families;
mod headers;
mod man;
mod symbols;
