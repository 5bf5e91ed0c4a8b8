//! What the device processes of a cluster run, made from the cluster's description.

use std::path::{absolute, PathBuf};

use qnic_config::{
    Config, EngineSettings, EthernetSettings, LinkSettings, MetricsSettings, NetworkSettings,
    NicSettings, ProcessSettings, ShmSettings, UdpSettings,
};
use qnic_limits::NodeId;

use crate::dirs::ClusterDir;
use crate::{ClusterSpec, HostSpec, LinkSpec, NetworkSpec};

impl ClusterSpec {
    /// What the device process named `process` runs, with its files in `dir`.
    pub(crate) fn device_config(&self, dir: &ClusterDir, process: Option<&str>) -> Config {
        let network = self.network_of_process(process);
        let nics = self.nics_of(process).into_iter().map(|nic| {
            let socket = dir.node(&nic.node.name).nic(nic.name);
            let number = NodeId(nic.number);
            NicSettings {
                ram_max: nic.node.memory_max,
                ..NicSettings::new(nic.address(), number, socket, nic.node.memory)
            }
        });
        Config {
            engine: EngineSettings {
                engines: self.device.engines,
                ..EngineSettings::default()
            },
            metrics: Some(self.metrics_settings(dir, process)),
            network: match self.network_of(network) {
                // Its links do nothing, and can be changed.
                None => Some(NetworkSettings::default()),
                Some(spec) if *spec == NetworkSpec::lossless() => None,
                Some(spec) if spec.lossless => Some(NetworkSettings {
                    lossless: true,
                    peer_timeout: spec.peer_timeout,
                    fault_timeout: spec.fault_timeout,
                    transport: spec.transport,
                    ..NetworkSettings::default()
                }),
                Some(spec) => {
                    let socket = |name: &str| dir.device(Some(name)).calls();
                    // A network of its own is one process, which calls no other.
                    let one_of_several = process.filter(|_| network.is_none());
                    Some(self.device_network((spec, network), one_of_several, &socket))
                }
            },
            ethernet_host: self.host_socket(dir, process),
            ethernet: self.ethernet_settings(dir, process),
            ..Config::new(nics.collect())
        }
    }

    /// Where programs of the host join the Ethernet of a device process, if it has ports.
    fn host_socket(&self, dir: &ClusterDir, process: Option<&str>) -> Option<PathBuf> {
        let numbered = self.numbered().map(|(node, _)| &node.name);
        let mut with_ports = numbered.filter(|name| self.ethernet_port(name).is_some());
        let is_here = |name: &String| self.process_of(name) == process;
        with_ports.any(is_here).then(|| dir.device(process).host())
    }

    /// The Ethernet ports of the network of a device process; its own ones have sockets.
    fn ethernet_settings(&self, dir: &ClusterDir, process: Option<&str>) -> Vec<EthernetSettings> {
        let own = self.nics_of(process);
        let ports = self.ports_on(self.network_of_process(process)).into_iter();
        let ports = ports.map(|port| {
            let mut settings = EthernetSettings::new(NodeId(port.number), port.addresses.mac);
            let common = self.ethernet();
            settings.mtu = common.mtu;
            settings.checksum_offload = common.checksum_offload;
            settings.segmentation_offload = common.segmentation_offload;
            if let Some(nic) = own.iter().find(|nic| nic.node.name == port.node) {
                settings.socket = Some(dir.node(&port.node).ethernet());
                settings.queues = nic.node.ethernet_queues();
                settings.ip = Some(port.addresses.ip);
            }
            settings
        });
        ports.collect()
    }

    fn metrics_settings(&self, dir: &ClusterDir, process: Option<&str>) -> MetricsSettings {
        let processes = self.device_processes();
        let index = processes.iter().position(|one| *one == process);
        let files = dir.device(process);
        MetricsSettings {
            http_socket: Some(files.http()),
            http: index.and_then(|index| self.device.metrics_of(index)),
            http_anywhere: self.device.metrics_anywhere,
            ..MetricsSettings::new(files.control())
        }
    }

    /// `socket` says where processes of this machine are called. The path of a private key is
    /// made absolute: the process may run elsewhere.
    fn device_network(
        &self,
        (network, name): (&NetworkSpec, Option<&str>),
        process: Option<&str>,
        socket: &dyn Fn(&str) -> PathBuf,
    ) -> NetworkSettings {
        let number = |end: &String| self.number_there(name, end);
        let link = |link: &LinkSpec| {
            let [from, to] = &link.between;
            Some(LinkSettings {
                from: number(from)?,
                to: number(to)?,
                one_way: link.one_way,
                impairments: link.impairments,
            })
        };
        let is_here = |host: &&HostSpec| network.here.as_ref() == Some(&host.name);
        let here = network.hosts.iter().find(is_here);
        let hosts = network.hosts.iter();
        let remote = hosts.filter(|host| here.is_some() && !is_here(host));
        let other = |name: &String, nodes: &[String]| ProcessSettings {
            name: name.clone(),
            address: None,
            public_key: None,
            socket: None,
            nodes: nodes.iter().filter_map(number).collect(),
        };
        let remote = remote.map(|host| ProcessSettings {
            address: Some(host.address),
            public_key: Some(host.public_key),
            ..other(&host.name, &host.nodes)
        });
        let local = network.processes.iter();
        let local = local.filter(|one| Some(one.name.as_str()) != process);
        let local = local.map(|one| ProcessSettings {
            socket: Some(socket(&one.name)),
            ..other(&one.name, &one.nodes)
        });
        NetworkSettings {
            lossless: false,
            topology: network.topology,
            columns: network.columns,
            hub: network.hub.as_ref().and_then(number),
            coordinates: network
                .coordinates
                .iter()
                .filter_map(|(name, at)| Some((number(name)?, at.clone())))
                .collect(),
            seed: network.seed,
            default: network.default,
            peer_timeout: network.peer_timeout,
            fault_timeout: network.fault_timeout,
            transport: network.transport,
            udp: here.map(|host| UdpSettings {
                name: host.name.clone(),
                listen: host.address,
                private_key: absolute(&host.private_key)
                    .unwrap_or_else(|_| host.private_key.clone()),
                encrypt: network.encrypt.unwrap_or(true),
            }),
            shm: process.map(|name| ShmSettings {
                name: name.to_owned(),
                socket: socket(name),
            }),
            links: network.links.iter().filter_map(link).collect(),
            processes: remote.chain(local).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use qnic_config::MacAddress;

    use super::*;
    use crate::testing::TestDir;

    /// What a device process of the cluster file `text` runs, after it went through the text
    /// that the process reads; and the directory of the cluster.
    fn handed_over(text: &str, host: Option<&str>, process: Option<&str>) -> (Config, PathBuf) {
        let dir = TestDir::new().dir;
        let spec = ClusterSpec::parse(text, Path::new("/c/c.toml")).unwrap();
        let spec = host.map_or_else(|| spec.clone(), |host| spec.on_host(host).unwrap());
        let config = spec.device_config(&dir, process);
        let text = toml::to_string(&config).unwrap();
        let read = Config::parse(&text, Path::new("device.toml")).unwrap();
        assert_eq!(read, config, "{text}");
        (read, dir.path().to_owned())
    }

    const PLAIN: &str =
        "[[node]]\nname = \"a\"\n[[node]]\nname = \"plain\"\nnic = false\nethernet = false\n\
                         [[node]]\nname = \"b\"\nmemory = \"1GiB\"\n";

    #[test]
    fn only_nodes_with_a_nic_are_configured_and_keep_their_numbers() {
        let text = format!("name = \"c\"\nethernet = false\n{PLAIN}");
        let (config, dir) = handed_over(&text, None, None);
        let nic = |name: &str, node, mib| {
            let socket = dir.join(format!("nodes/{name}/nic.sock"));
            NicSettings::new(name, NodeId(node), socket, qnic_config::ByteSize::mib(mib))
        };
        let expected = Config {
            metrics: Some(MetricsSettings {
                http_socket: Some(dir.join("device.http")),
                ..MetricsSettings::new(dir.join("device.sock"))
            }),
            network: Some(NetworkSettings::default()),
            ..Config::new(vec![nic("a", 0, 256), nic("b", 2, 1024)])
        };
        assert_eq!(config, expected);
        let text = format!("name = \"c\"\nnetwork = {{ lossless = true }}\n{PLAIN}");
        let (lossless, _) = handed_over(&text, None, None);
        assert_eq!(lossless.network, None);
        let bounds = "{ lossless = true, transport = { window = 64 } }";
        let text = format!("name = \"c\"\nnetwork = {bounds}\n{PLAIN}");
        let network = handed_over(&text, None, None).0.network.unwrap();
        assert_eq!(
            (network.lossless, network.transport.window),
            (true, Some(64))
        );
    }

    /// A network of its own has a device process, with the NICs there by their numbers there (S7).
    #[test]
    fn each_network_is_a_device_process() {
        let text = "name = \"c\"\n[networks.disks]\ndefault = { delay = \"20us\" }\n\
                    [[networks.disks.link]]\nbetween = [\"a\", \"b.too\"]\nimpairments = { loss = \"5%\" }\n\
                    [[node]]\nname = \"a\"\nnics = [{ name = \"main\" }, { name = \"disks\", network = \"disks\" }]\n\
                    [[node]]\nname = \"b\"\nnics = [{ name = \"disks\", network = \"disks\" }, { name = \"too\", network = \"disks\" }]\n";
        let nics = |config: &Config| -> Vec<_> {
            let nics = config.nics.iter();
            nics.map(|nic| (nic.name.clone(), nic.node.0)).collect()
        };
        let named = |name: &str, number| (name.to_owned(), number);
        let (main, _) = handed_over(text, None, None);
        assert_eq!(nics(&main), [named("a", 0)]);
        assert_eq!(main.network, Some(NetworkSettings::default()));
        let (disks, dir) = handed_over(text, None, Some("disks"));
        let expected = [named("a.disks", 0), named("b", 1), named("b.too", 2)];
        assert_eq!(nics(&disks), expected);
        assert_eq!(disks.nics[2].socket, dir.join("nodes/b/nic.too.sock"));
        let network = disks.network.unwrap();
        assert_eq!((network.links[0].from, network.links[0].to), (0, 2));
        assert!(network.shm.is_none() && network.processes.is_empty());
    }

    #[test]
    fn the_device_process_is_told_how_many_engines_it_has() {
        for (value, count) in [("3", 2), ("1", 1), ("\"auto\"", 1)] {
            let text = format!("name = \"c\"\n[device]\nengines = {value}\n{PLAIN}");
            let (config, _) = handed_over(&text, None, None);
            assert_eq!(config.engine.engines.count(2, 4, true), count, "{value}");
        }
    }

    #[test]
    fn a_process_of_several_has_its_nics_and_knows_where_the_others_are_called() {
        let text = format!(
            "name = \"c\"\n[device]\nmetrics = \"127.0.0.1:9750\"\n\
             [[network.process]]\nname = \"left\"\nnodes = [\"a\"]\n\
             [[network.process]]\nname = \"right\"\nnodes = [\"b\"]\n{PLAIN}"
        );
        let (config, dir) = handed_over(&text, None, Some("right"));
        let nics: Vec<_> = config
            .nics
            .iter()
            .map(|nic| (&*nic.name, nic.node.0))
            .collect();
        assert_eq!(nics, [("b", 2)]);
        let metrics = config.metrics.unwrap();
        assert_eq!(metrics.socket, dir.join("device-right.sock"));
        assert_eq!(metrics.http_socket, Some(dir.join("device-right.http")));
        assert_eq!(metrics.http, Some("127.0.0.1:9751".parse().unwrap()));
        let (left, _) = handed_over(&text, None, Some("left"));
        let first = left.metrics.unwrap().http;
        assert_eq!(first, Some("127.0.0.1:9750".parse().unwrap()));
        let expected = NetworkSettings {
            shm: Some(ShmSettings {
                name: "right".to_owned(),
                socket: dir.join("device-right.shm"),
            }),
            processes: vec![ProcessSettings {
                name: "left".to_owned(),
                address: None,
                public_key: None,
                socket: Some(dir.join("device-left.shm")),
                nodes: vec![0],
            }],
            ..NetworkSettings::default()
        };
        assert_eq!(config.network, Some(expected));
    }

    /// Each process knows all ports, and serves its own.
    #[test]
    fn a_process_of_several_serves_its_ethernet_ports_and_knows_the_others() {
        let text = format!(
            "name = \"c\"\nethernet = {{ mtu = 4000 }}\n\
             [[network.process]]\nname = \"left\"\nnodes = [\"a\"]\n\
             [[network.process]]\nname = \"right\"\nnodes = [\"b\"]\n{PLAIN}cpus = 2\n"
        );
        let (config, dir) = handed_over(&text, None, Some("right"));
        let port = |node: u8| EthernetSettings {
            mtu: 4000,
            ..EthernetSettings::new(
                NodeId(node.into()),
                MacAddress([0x52, 0x54, 0, 0x71, 0, node]),
            )
        };
        let own = EthernetSettings {
            socket: Some(dir.join("nodes/b/eth.sock")),
            queues: 2,
            ip: "10.71.0.3".parse().ok(),
            ..port(2)
        };
        assert_eq!(config.ethernet, [port(0), own]);
        assert_eq!(config.ethernet_host, Some(dir.join("device-right.host")));
        let alone =
            format!("name = \"c\"\nethernet = true\nnetwork = {{ lossless = true }}\n{PLAIN}");
        let (config, _) = handed_over(&alone, None, None);
        let own = config.ethernet.iter().filter(|port| port.socket.is_some());
        assert_eq!((own.count(), config.network), (2, None));
    }

    /// A port is in the device process of the first NIC of its node (S7).
    #[test]
    fn the_port_of_several_nics_is_in_the_process_of_the_first() {
        let text = "name = \"c\"\nethernet = true\n[networks.disks]\n\
                    [[node]]\nname = \"a\"\nnics = [{ name = \"main\" }, { name = \"disks\", network = \"disks\" }]\n\
                    [[node]]\nname = \"b\"\nnics = [{ name = \"disks\", network = \"disks\" }]\n";
        let nodes = |process| -> Vec<_> {
            let ports = handed_over(text, None, process).0.ethernet.into_iter();
            ports.map(|port| port.node.0).collect()
        };
        assert_eq!((nodes(None), nodes(Some("disks"))), (vec![0], vec![1]));
    }

    /// The places of nodes go with them to each device process (Q16).
    #[test]
    fn coordinates_are_told_by_the_numbers_of_nodes() {
        let text = format!(
            "name = \"c\"\n[network]\ntopology = \"ring\"\n\
             coordinates = {{ a = [1], b = [0] }}\n{PLAIN}"
        );
        let (config, _) = handed_over(&text, None, None);
        let plan = config.network_plan().unwrap();
        assert_eq!(plan.nodes, [2, 0].map(NodeId));
    }

    #[test]
    fn a_host_is_told_of_the_others_and_of_links() {
        let text = "name = \"c\"\n[network]\ntopology = \"torus\"\ncolumns = 2\n\
                    peer_timeout = \"2s\"\ndefault = { delay = \"20us\" }\n\
                    [[network.link]]\nbetween = [\"a0\", \"a1\"]\none_way = true\n\
                    impairments = { loss = \"5%\" }\n\
                    [[network.host]]\nname = \"west\"\naddress = \"10.0.0.1:7000\"\nnodes = [\"a0\", \"a1\"]\n\
                    private_key = \"w\"\npublic_key = \"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"\n\
                    [[network.host]]\nname = \"east\"\naddress = \"10.0.0.2:7000\"\nnodes = [\"a2\", \"a3\"]\n\
                    private_key = \"e\"\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\n\
                    [[node]]\nname = \"a\"\ncount = 4\n";
        let ports = text.replacen("[network]", "ethernet = true\n[network]", 1);
        let (config, dir) = handed_over(&ports, Some("east"), None);
        let sockets: Vec<_> = config
            .ethernet
            .into_iter()
            .map(|port| port.socket)
            .collect();
        let own = |name: &str| Some(dir.join(format!("nodes/{name}/eth.sock")));
        assert_eq!(sockets, [None, None, own("a2"), own("a3")]);
        let (config, _) = handed_over(text, Some("east"), None);
        let network = config.network.unwrap();
        let printed = toml::to_string(&network).unwrap();
        let expected = "topology = \"torus\"\ncolumns = 2\nseed = 0\npeer_timeout = \"2s\"\n\n\
                        [default]\ndelay = \"20us\"\n\n\
                        [udp]\nname = \"east\"\nlisten = \"10.0.0.2:7000\"\nprivate_key = \"/c/e\"\nencrypt = true\n\n\
                        [[link]]\nfrom = 0\nto = 1\none_way = true\n\n\
                        [link.impairments]\nloss = \"5%\"\n\n\
                        [[process]]\nname = \"west\"\naddress = \"10.0.0.1:7000\"\n\
                        public_key = \"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"\nnodes = [0, 1]\n";
        assert_eq!(printed, expected);
    }
}
