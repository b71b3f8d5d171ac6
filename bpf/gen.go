package bpf

// bpf2go itself keeps the working directory out of the objects. The folders of the host's own headers differ by
// architecture; whichever exists is used, and the objects come out the same.
//
//go:generate -command build go tool bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu"
//go:generate build -output-stem pod_egress -type drop_event -type token_bucket -type protocol -type ct_flag -type service_flag -type nat_place -type nat_flag -type nat_total podEgress pod_egress.c
//go:generate build -output-stem pod_ingress -no-global-types podIngress pod_ingress.c
//go:generate build -output-stem host_egress -no-global-types hostEgress host_egress.c
//go:generate build -output-stem netdev_ingress -no-global-types netdevIngress netdev_ingress.c
//go:generate build -output-stem netdev_egress -no-global-types -type netdev -type netdev_flag netdevEgress netdev_egress.c
//go:generate build -output-stem overlay_ingress -no-global-types overlayIngress overlay_ingress.c
//go:generate build -output-stem sock -no-global-types sock sock.c
//go:generate build -output-stem sock_list -no-global-types sockList sock_list.c
//go:generate go run ./internal/record
