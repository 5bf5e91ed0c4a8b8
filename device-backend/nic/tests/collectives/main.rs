//! Groups and collectives (Q14, Q15, N26; docs/collectives.md): a story for each rule.

mod farewell;
mod groups;
mod long_multicasts;
mod multicasts;
mod operations;
mod party;
