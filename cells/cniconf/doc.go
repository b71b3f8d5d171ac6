// Package cniconf tells container runtimes that pods can be attached, by writing the CNI configuration list.
//
// It reads what [readiness.Tables] names, and configs for the path of the agent's socket; it writes the table cni-config.
// It changes nothing in the kernel. On disk it owns the file of --write-cni-conf-when-ready, and with --cni-exclusive it
// renames the other configurations of that directory.
//
// The file is written once pods can be attached, and written again when somebody removes or changes it. It stays when the
// agent stops and when it is not ready for a while: the plugin itself tells runtimes to wait, and DEL needs it. After a
// restart an equal file is left alone, so that runtimes do not load it again.
package cniconf
