// Package nodefirewall names the firewall of the node that drops what pods send to other hosts: the chains of Docker, ufw and firewalld do by default.
//
// Tables in: devices, local-node. Tables out: none. It owns nothing in the kernel and changes nothing there. After a restart it looks again.
package nodefirewall
