//! Links of a cluster, by the names of nodes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Links of a cluster, by the names of nodes. As text: `all`, `a`, `a:b`, `a>b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Every link.
    All,
    /// All links of a node.
    At(String),
    /// Both directions.
    Between(String, String),
    /// From the first to the second.
    OneWay(String, String),
}

impl Links {
    /// What `text` names: `all`, a node, `A:B` or `A>B`. Whether there are such nodes is for
    /// the cluster to say.
    pub fn named(text: &str) -> Self {
        if text == "all" {
            return Self::All;
        }
        if let Some((from, to)) = text.split_once('>') {
            return Self::OneWay(from.to_owned(), to.to_owned());
        }
        match text.split_once(':') {
            Some((a, b)) => Self::Between(a.to_owned(), b.to_owned()),
            None => Self::At(text.to_owned()),
        }
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::At(node) => f.write_str(node),
            Self::Between(a, b) => write!(f, "{a}:{b}"),
            Self::OneWay(from, to) => write!(f, "{from}>{to}"),
        }
    }
}

impl Serialize for Links {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Links {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self::named(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_in_four_ways() {
        let both = ["a", "b"].map(str::to_owned);
        let [a, b] = both;
        for (text, links) in [
            ("all", Links::All),
            ("a-1", Links::At("a-1".into())),
            ("a:b", Links::Between(a.clone(), b.clone())),
            ("a>b", Links::OneWay(a, b)),
        ] {
            assert_eq!(Links::named(text), links);
            assert_eq!(links.to_string(), text);
        }
    }
}
