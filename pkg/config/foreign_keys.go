package config

// Keys of all versions of Cilium's agent, separated by white space. Switches need no argument on a command line, values need
// one. A key that a cell registers is not looked up in these lists, so a key may stay in its list when a cell implements it.
const (
	foreignSwitches = `
agent-health-require-k8s-connectivity allow-icmp-frag-needed allow-unsafe-policy-skb-usage
bgp-announce-lb-ip bgp-announce-pod-cidr bpf-ct-accounting
bpf-distributed-lru bpf-events-drop-enabled bpf-events-policy-verdict-enabled bpf-events-trace-enabled
bpf-lb-algorithm-annotation bpf-lb-bypass-fib-lookup bpf-lb-external-clusterip bpf-lb-mode-annotation bpf-lb-nat46x64
bpf-lb-proto-diff bpf-lb-sock bpf-lb-sock-hostns-only bpf-lb-sock-terminate-pod-connections
bpf-lb-source-range-all-types bypass-ip-availability-upon-restore clustermesh-enable-endpoint-sync
clustermesh-enable-mcs-api cni-exclusive cni-external-routing
disable-cnp-status-updates disable-conntrack disable-envoy-version-check
dns-policy-unload-on-shutdown dnsproxy-enable-transparent-mode dnsproxy-insecure-skip-transparent-mode-check
egress-multi-home-ip-rule-compat enable-active-connection-tracking enable-auto-protect-node-port-range
enable-bandwidth-manager enable-bbr enable-bbr-hostns-only enable-bgp-control-plane enable-bpf-clock-probe
enable-bpf-masquerade enable-bpf-tproxy enable-cilium-clusterwide-network-policy enable-cilium-endpoint-slice
enable-cilium-network-policy enable-custom-calls enable-drift-checker enable-dynamic-config
enable-dynamic-lifecycle-manager enable-encryption-strict-mode enable-encryption-strict-mode-egress enable-encryption-strict-mode-ingress
enable-endpoint-lockdown-on-policy-overflow enable-endpoint-routes enable-envoy-config enable-experimental-lb
enable-extended-ip-protocols enable-external-ips enable-gateway-api enable-gateway-api-alpn
enable-gateway-api-app-protocol enable-gateway-api-proxy-protocol enable-gateway-api-secrets-sync enable-gops
enable-health-check-loadbalancer-ip enable-health-check-nodeport enable-high-scale-ipcache
enable-host-firewall enable-host-legacy-routing enable-host-port enable-host-reachable-services enable-hubble
enable-hubble-open-metrics enable-hubble-recorder-api enable-icmp-rules enable-identity-mark enable-ingress-controller
enable-ingress-proxy-protocol enable-ingress-secrets-sync enable-internal-traffic-policy enable-ip-masq-agent
enable-ipip-termination enable-ipsec enable-ipsec-encrypted-overlay enable-ipsec-key-watcher
enable-ipsec-xfrm-state-caching enable-ipv4-big-tcp enable-ipv4-egress-gateway enable-ipv4-fragment-tracking
enable-ipv4-masquerade enable-ipv6-big-tcp enable-ipv6-fragment-tracking enable-ipv6-masquerade enable-ipv6-ndp
enable-k8s enable-k8s-api-discovery enable-k8s-endpoint-slice enable-k8s-event-handover enable-k8s-networkpolicy
enable-k8s-terminating-endpoint enable-l2-announcements enable-l2-neigh-discovery enable-l2-pod-announcements
enable-l7-proxy enable-lb-ipam enable-local-node-route enable-local-redirect-policy enable-masquerade-to-route-source
enable-mke enable-monitor enable-multicast enable-nat46x64-gateway enable-no-service-endpoints-routable
enable-node-ipam enable-node-port enable-node-selector-labels enable-non-default-deny-policies
enable-packetization-layer-pmtud enable-pmtu-discovery enable-policy-secrets-sync enable-recorder
enable-remote-node-identity enable-remote-node-masquerade enable-route-mtu-for-cni-chaining
enable-runtime-device-detection enable-sctp enable-selective-regeneration enable-service-topology
enable-session-affinity enable-socket-lb-pod-connection-termination enable-socket-lb-tracing
enable-source-ip-verification enable-srv6 enable-stale-cilium-endpoint-cleanup enable-standalone-dns-proxy
enable-svc-source-range-check enable-tcx enable-tracing enable-unreachable-routes enable-vtep
enable-well-known-identities enable-wireguard enable-wireguard-userspace-fallback enable-xdp-prefilter
enable-xt-socket-fallback enable-ztunnel encrypt-node encryption-strict-egress-allow-remote-node-identities
encryption-strict-mode-allow-remote-node-identities
envoy-keep-cap-netbindservice external-envoy-proxy force-device-detection force-local-policy-eval-at-source
gateway-api-hostnetwork-enabled gateway-api-xff-enabled hubble-disable-tls hubble-drop-events hubble-export-allow-all
hubble-export-fieldmask-enabled hubble-export-file-compress hubble-metrics-server-enable-tls
hubble-network-policy-correlation-enabled hubble-prefer-ipv6 hubble-redact-enabled hubble-redact-http-urlquery
hubble-redact-http-userinfo hubble-redact-kafka-apikey hubble-skip-unknown-cgroup-ids ingress-hostnetwork-enabled
install-egress-gateway-routes install-iptables-rules install-no-conntrack-iptables-rules iptables-random-fully
k8s-require-ipv4-pod-cidr k8s-require-ipv6-pod-cidr keep-bpf-templates keep-config kvstore-pod-network-support
mesh-auth-enabled nat-map-stats-enabled node-port-bind-protection policy-accounting policy-audit-mode
policy-default-local-cluster pprof preallocate-bpf-maps prepend-iptables-chains proxy-use-original-source-address
remove-cilium-node-taints restore set-cilium-is-up-condition set-cilium-node-taints skip-cnp-status-startup-clean
skip-crd-creation synchronize-k8s-nodes tofqdns-enable-dns-compression tofqdns-preallocate-identities
use-cilium-internal-ip-for-ipsec wireguard-track-all-ips-fallback`

	foreignValues = `
agent-health-port agent-labels agent-liveness-update-interval allocator-list-timeout
allow-localhost api-rate-limit arping-refresh-period bgp-config-path bgp-router-id-allocation-ip-pool
bgp-router-id-allocation-mode bgp-secrets-namespace bpf-auth-map-max bpf-ct-global-any-max bpf-ct-global-tcp-max
bpf-ct-timeout-regular-any bpf-ct-timeout-regular-tcp bpf-ct-timeout-regular-tcp-fin bpf-ct-timeout-regular-tcp-syn
bpf-ct-timeout-service-any bpf-ct-timeout-service-tcp bpf-ct-timeout-service-tcp-grace bpf-events-default-burst-limit
bpf-events-default-rate-limit bpf-filter-priority bpf-fragments-map-max bpf-lb-acceleration bpf-lb-affinity-map-max
bpf-lb-algorithm bpf-lb-dev-ip-addr-inherit bpf-lb-dsr-dispatch bpf-lb-dsr-l4-xlate bpf-lb-maglev-hash-seed
bpf-lb-maglev-map-max bpf-lb-maglev-table-size bpf-lb-map-max bpf-lb-mode bpf-lb-rev-nat-map-max
bpf-lb-rss-ipv4-src-cidr bpf-lb-rss-ipv6-src-cidr bpf-lb-service-backend-map-max bpf-lb-service-map-max
bpf-lb-source-range-map-max bpf-map-dynamic-size-ratio bpf-map-event-buffers bpf-nat-global-max bpf-neigh-global-max
bpf-node-map-max bpf-policy-map-full-reconciliation-interval bpf-policy-map-max
bpf-policy-map-pressure-metrics-threshold bpf-policy-stats-map-max bpf-root bpf-sock-rev-map-max
certificates-directory cflags cgroup-root cluster-health-port cluster-id
clustermesh-cache-ttl clustermesh-config clustermesh-ip-identities-sync-timeout clustermesh-sync-timeout cmdref
cni-chaining-mode cni-chaining-target cni-log-file cni-resource-group config config-sources config-sources-overrides
conntrack-gc-interval conntrack-gc-max-interval container-ip-local-reserved-ports controller-group-metrics
crd-wait-timeout datapath-mode debug-verbose derive-masquerade-ip-addr-from-device devices direct-routing-device
disable-iptables-feeder-rules disabled-crds dns-max-ips-per-restored-rule dnsproxy-concurrency-limit
dnsproxy-concurrency-processing-grace-period dnsproxy-lock-count dnsproxy-lock-timeout dnsproxy-socket-linger-timeout
drop-notification-interval dynamic-lifecycle-config egress-gateway-policy-map-max
egress-gateway-reconciliation-trigger-interval egress-masquerade-interfaces enable-cilium-api-server-access
enable-cilium-health-api-server-access enable-policy encrypt-interface encryption-strict-egress-cidr
encryption-strict-mode-cidr endpoint-bpf-prog-watchdog-interval endpoint-interface-name-prefix
endpoint-queue-size endpoint-regen-interval endpoint-status envoy-access-log-buffer-size envoy-base-id
envoy-config-retry-interval envoy-config-timeout envoy-default-log-level envoy-http-retry-count
envoy-http-upstream-linger-timeout envoy-log envoy-policy-restore-timeout envoy-secrets-namespace
exclude-local-address exclude-node-label-patterns fixed-identity-mapping fixed-zone-mapping
fqdn-regex-compile-lru-size gateway-api-hostnetwork-nodelabelselector gateway-api-secrets-namespace
gateway-api-service-externaltrafficpolicy gops-port health-check-icmp-failure-threshold host-reachable-services-protos
http-403-msg http-idle-timeout http-max-grpc-timeout http-normalize-path http-request-timeout http-retry-count
http-retry-timeout http-stream-idle-timeout hubble-drop-events-interval hubble-drop-events-reasons
hubble-dynamic-metrics-config-path hubble-event-buffer-capacity hubble-event-queue-size hubble-export-allowlist
hubble-export-denylist hubble-export-fieldmask hubble-export-file-max-backups hubble-export-file-max-size-mb
hubble-export-file-path hubble-flow-buffer-size hubble-flowlogs-config-path hubble-listen-address
hubble-lost-event-send-interval hubble-metrics hubble-metrics-server hubble-metrics-server-tls-cert-file
hubble-metrics-server-tls-client-ca-files hubble-metrics-server-tls-key-file hubble-monitor-events
hubble-recorder-sink-queue-size hubble-recorder-storage-path hubble-redact-http-headers-allow
hubble-redact-http-headers-deny hubble-socket-path hubble-tls-cert-file hubble-tls-client-ca-files hubble-tls-key-file
identity-allocation-sync-interval identity-allocation-timeout identity-change-grace-period
identity-gc-interval identity-heartbeat-timeout identity-management-mode identity-max-jitter
identity-restore-grace-period ingress-default-lb-mode ingress-default-request-timeout ingress-default-secret-name
ingress-default-secret-namespace ingress-default-xff-num-trusted-hops ingress-hostnetwork-nodelabelselector
ingress-hostnetwork-shared-listener-port ingress-lb-annotation-prefixes ingress-secrets-namespace
ingress-shared-lb-service-name ip-allocation-timeout ip-masq-agent-config-path ip-tracing-option-type ipam
ipam-cilium-node-update-rate ipam-default-ip-pool ipam-multi-pool-pre-allocation ipsec-key-file
ipsec-key-rotation-duration iptables-lock-timeout ipv4-cluster-cidr-mask-size ipv4-native-routing-cidr ipv4-node
ipv4-pod-subnets ipv4-range ipv4-service-loopback-address ipv4-service-range ipv6-cluster-alloc-cidr ipv6-mcast-device
ipv6-native-routing-cidr ipv6-node ipv6-pod-subnets ipv6-range ipv6-service-loopback-address ipv6-service-range
join-cluster k8s-api-server k8s-api-server-urls k8s-client-burst k8s-client-connection-keep-alive
k8s-client-connection-timeout k8s-client-qps k8s-heartbeat-timeout k8s-kubeconfig-path k8s-namespace
k8s-service-cache-size k8s-service-debounce-buffer-size k8s-service-debounce-wait-time k8s-service-proxy-name
k8s-watcher-endpoint-selector k8s-watcher-queue-size kernel-hz kube-proxy-replacement
kube-proxy-replacement-healthz-bind-address kvstore kvstore-connectivity-timeout kvstore-lease-ttl
kvstore-max-consecutive-quorum-errors kvstore-opt kvstore-periodic-sync l2-announcements-lease-duration
l2-announcements-renew-deadline l2-announcements-retry-period l2-pod-announcements-interface
l2-pod-announcements-interface-pattern lb-pressure-metrics-interval lb-retry-backoff-max
lb-retry-backoff-min lb-state-file lb-state-file-interval loadbalancer-l7 loadbalancer-l7-algorithm
loadbalancer-l7-ports local-max-addr-scope local-router-ipv4 local-router-ipv6 log-driver log-opt
max-connected-clusters max-controller-interval max-internal-timer-delay mesh-auth-gc-interval
mesh-auth-mutual-connect-timeout mesh-auth-mutual-listener-port mesh-auth-queue-size
mesh-auth-rotated-identities-queue-size mesh-auth-signal-backoff-duration mesh-auth-spiffe-trust-domain
mesh-auth-spire-admin-socket mesh-auth-spire-agent-socket metrics metrics-sampling-interval monitor-aggregation
monitor-aggregation-flags monitor-aggregation-interval monitor-queue-size mtu nat-map-stats-entries
nat-map-stats-interval netns-cookie-map-max node-labels node-port-acceleration node-port-algorithm node-port-mode
node-encryption-opt-out-labels node-port-range nodeport-addresses nodes-gc-interval operator-prometheus-serve-addr
policy-cidr-match-mode policy-deny-response policy-queue-size policy-restore-timeout policy-trigger-interval
pprof-address pprof-block-profile-rate pprof-mutex-profile-fraction pprof-port prefilter-device prefilter-mode procfs
prometheus-serve-addr proxy-admin-port proxy-cluster-max-connections proxy-cluster-max-requests proxy-connect-timeout
proxy-gid proxy-idle-timeout-seconds proxy-initial-fetch-timeout proxy-max-active-downstream-connections
proxy-max-concurrent-retries proxy-max-connection-duration-seconds proxy-max-requests-per-connection
proxy-portrange-max proxy-portrange-min proxy-prometheus-port proxy-xff-num-trusted-hops-egress
proxy-xff-num-trusted-hops-ingress read-cni-conf restored-proxy-ports-age-limit
service-no-backend-response socket-path srv6-encap-mode standalone-dns-proxy-server-port state-dir static-cnp-path
status-collector-failure-threshold status-collector-interval status-collector-probe-check-timeout
status-collector-stackdump-path status-collector-warning-threshold tofqdns-dns-reject-response-code
tofqdns-endpoint-max-ip-per-hostname tofqdns-idle-connection-grace-period tofqdns-max-deferred-connection-deletes
tofqdns-min-ttl tofqdns-pre-cache tofqdns-proxy-port tofqdns-proxy-response-max-delay trace-payloadlen
trace-payloadlen-overlay tunnel tunnel-source-port-range underlay-protocol
unmanaged-pod-watcher-interval vlan-bpf-bypass vtep-cidr vtep-endpoint vtep-mac vtep-mask vtep-sync-interval
wireguard-persistent-keepalive write-cni-conf-when-ready xds-server-address`

	// foreignOperator holds keys of the operator, which are in the same ConfigMap.
	foreignOperator = `
alibaba-cloud-vpc-id auto-create-cilium-pod-ip-pools aws-enable-prefix-delegation aws-release-excess-ips
azure-resource-group azure-subscription-id azure-use-primary-address azure-user-assigned-identity-id bpf-compile-debug
ces-enable-dynamic-rate-limit ces-max-ciliumendpoints-per-ces ces-rate-limits ces-slice-mode cilium-pod-labels
cilium-pod-namespace
cnp-node-status-gc-interval custom-cni-conf ec2-api-endpoint enable-k8s-token-refresh
eni-tags excess-ip-release-delay identity-gc-rate-interval identity-gc-rate-limit instance-tags-filter
limit-ipam-api-burst
limit-ipam-api-qps parallel-alloc-workers pod-restart-selector sidecar-istio-proxy-image subnet-ids-filter
subnet-tags-filter taint-sync-workers update-ec2-adapter-limit-via-api`
)
