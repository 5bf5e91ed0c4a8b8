//! From the text of a file to a [`Config`], with the place of every value.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use qnic_abi::{attach, header, NodeId};
use serde::Deserialize;
use toml::Spanned;

use super::network::RawNetwork;
use super::{Config, ConfigError, EngineSettings, MetricsSettings, NicSettings};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    #[serde(default)]
    nic: Vec<RawNic>,
    #[serde(default)]
    engine: Option<Spanned<EngineSettings>>,
    metrics: Option<Spanned<MetricsSettings>>,
    network: Option<RawNetwork>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNic {
    name: Spanned<String>,
    node: Spanned<u16>,
    socket: Spanned<PathBuf>,
    ram: Spanned<String>,
    doorbells: Option<Spanned<u32>>,
    windows: Option<Spanned<u32>>,
}

/// Where each key stands.
pub(super) type Places = HashMap<String, Range<usize>>;

impl RawConfig {
    pub(super) fn resolve(self) -> Result<(Config, Places), (Range<usize>, String)> {
        let mut places = Places::new();
        let mut nics = Vec::with_capacity(self.nic.len());
        for (index, raw) in self.nic.into_iter().enumerate() {
            nics.push(raw.resolve(index, &mut places)?);
        }
        let mut take = |key: &str, span| places.insert(key.to_owned(), span);
        let engine = self.engine.map(|engine| {
            take("engine.poll_window_us", engine.span());
            engine.into_inner()
        });
        let metrics = self.metrics.map(|metrics| {
            take("metrics.socket", metrics.span());
            metrics.into_inner()
        });
        let network = self.network.map(|network| network.resolve(&mut places));
        let config = Config {
            nics,
            engine: engine.unwrap_or_default(),
            metrics,
            network,
        };
        Ok((config, places))
    }
}

impl RawNic {
    fn resolve(
        self,
        index: usize,
        places: &mut Places,
    ) -> Result<NicSettings, (Range<usize>, String)> {
        let mut place = |field: &str, span: Range<usize>| {
            places.insert(format!("nic[{index}].{field}"), span);
        };
        place("name", self.name.span());
        place("node", self.node.span());
        place("socket", self.socket.span());
        place("ram", self.ram.span());
        let mut optional = |field: &str, value: Option<Spanned<u32>>, default: u32| {
            value.map_or(default, |value| {
                place(field, value.span());
                value.into_inner()
            })
        };
        let doorbells = optional("doorbells", self.doorbells, attach::DEFAULT_DOORBELLS);
        let windows = optional("windows", self.windows, header::DEFAULT_WINDOWS);
        let ram = self.ram.get_ref().parse().map_err(|message: String| {
            let message = format!("nic[{index}].ram: {message}");
            (self.ram.span(), message)
        })?;
        Ok(NicSettings {
            name: self.name.into_inner(),
            node: NodeId(self.node.into_inner()),
            socket: self.socket.into_inner(),
            ram,
            doorbells,
            windows,
        })
    }
}

pub(super) fn mistake_at(
    file: &Path,
    text: &str,
    span: &Range<usize>,
    message: String,
) -> ConfigError {
    let before = text.get(..span.start).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    ConfigError::Mistake {
        file: file.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[start..].chars().count() + 1,
        message: message.trim_end().replace('\n', ", "),
        text: text[start..].lines().next().unwrap_or("").to_owned(),
    }
}
