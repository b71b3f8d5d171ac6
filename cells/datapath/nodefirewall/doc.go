// Package nodefirewall reports chains of the node's firewall that drop packets from pods to other hosts, as the chains of Docker, ufw and firewalld do by
// default.
//
// Tables in: devices, local-node. Tables out: firewall-chains. The cell owns and changes nothing in the kernel. After a restart it reads the rules again.
package nodefirewall
