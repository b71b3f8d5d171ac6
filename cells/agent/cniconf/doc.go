// Package cniconf writes the CNI configuration list, which makes container runtimes attach pods.
//
// Tables in: the tables of [readiness.Tables], and configs for the path of the agent's socket. Table out: cni-config. The cell changes nothing in the
// kernel. On disk it owns the file of --write-cni-conf-when-ready, and with --cni-exclusive it renames the other configurations of that directory.
//
// The cell writes the file once pods can be attached, and restores it after a removal or a change, with increasing delays while another program keeps
// changing it. Plugins that other programs append to the list stay. The file stays when the agent stops and while it
// is not ready: the plugin makes runtimes wait, and DEL needs the file. After a restart an equal file is not written again, so that runtimes do not
// reload it.
package cniconf
