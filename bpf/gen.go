package bpf

// bpf2go itself keeps the working directory out of the objects. The folders of the host's own headers differ by
// architecture; whichever exists is used, and the objects come out the same.
//
//go:generate -command build go tool bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu"
//go:generate build -output-stem pod_egress -no-global-types -type addr_key -type affinity_entry -type affinity_key -type affinity_member -type backend -type cidr -type ct_entry -type ct_flag -type ct_key4 -type ct_key6 -type datapath_state -type drop_event -type encap -type endpoint_facts -type endpoint_ref -type frag_entry -type frag_key -type identity_classes -type ipcache_entry -type lpm_key -type metrics_value -type nat_count -type nat_entry4 -type nat_entry6 -type nat_flag -type nat_key4 -type nat_key6 -type nat_place -type nat_total -type node -type node_addr -type overlay -type policy_entry -type policy_key -type policy_range_key -type protocol -type service -type service_flag -type service_key -type source_range_key -type token_bucket podEgress pod_egress.c
//go:generate build -output-stem pod_ingress -no-global-types podIngress pod_ingress.c
//go:generate build -output-stem host_egress -no-global-types hostEgress host_egress.c
//go:generate build -output-stem netdev_ingress -no-global-types netdevIngress netdev_ingress.c
//go:generate build -output-stem netdev_egress -no-global-types -type netdev -type netdev_flag netdevEgress netdev_egress.c
//go:generate build -output-stem overlay_ingress -no-global-types overlayIngress overlay_ingress.c
//go:generate build -output-stem sock -no-global-types sock sock.c
//go:generate build -output-stem sock_list -no-global-types sockList sock_list.c
//go:generate go run ./internal/record
