//! The shared accesses of driver and NIC to the shadow page table, in every
//! interleaving: this crate's [`qnic_driver::shadow::Table`] against the NIC's real
//! `page_table`, over loom's atomics (N5, N6, N7; NetVM §4.3, §4.4).
//!
//! | module | shows |
//! |---|---|
//! | [`exclusion`] | unmapPage against lockPage: the outcomes of figure 13, forced and not (N6) |
//! | [`insertion`] | the NIC finds consistent pages, also in a frame that passes to another page (N5) |
//! | [`eviction`] | a full row evicts no page that the NIC holds (N5) |
//! | [`dirty`] | a modified page never counts as clean (N7) |
//! | [`span`] | the same for several pages that are locked behind one fence |
//!
//! `cargo run --bin qnic-mutants` removes every fence and store, swaps every two
//! stores and weakens every ordering of both sides in turn, and these models have
//! to fail: `docs/proofs.md`.

mod access;
mod dirty;
mod eviction;
mod exclusion;
mod insertion;
mod span;
mod world;
