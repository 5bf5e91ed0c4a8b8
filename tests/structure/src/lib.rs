//! Checks of the source tree itself.
//!
//! | module | what its test fails on |
//! |---|---|
//! | [`modules`], [`packages`] | a circle of imports in any package, a public field of `Nic`, an import between protocols or between core and transport |
//! | [`prose`] | a word for people, such as `whoever`, that means a program |
//! | [`requirements`] | a code that is cited and that docs/requirements.md does not define |
//! | [`surface`] | an `Endpoint` with more public methods than [`surface::MAX_METHODS`] |
//! | [`tidy`] | a file or a function that is too long, a link of a document that leads nowhere, a version without its change |
//! | [`tour`] | a stop of docs/tour.md that does not exist |
//! | [`words`] | a word that was replaced (`replaced.txt`) |
//!
//! Each check works on files that are given to it, so that it is tested on small trees
//! that are made up; `tests/checkout.rs` applies all of them to the checkout.
#![forbid(unsafe_code)]

pub mod modules;
pub mod packages;
pub mod prose;
mod references;
pub mod requirements;
pub mod sources;
pub mod surface;
pub mod tidy;
pub mod tour;
pub mod words;
