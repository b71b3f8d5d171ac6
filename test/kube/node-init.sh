# The first process of a node, PID 1 of its namespaces. It joins the node's cgroups ($CGROUPS), then makes them the root
# of what the node sees, gives the node folders of its own, says so on descriptor 3 and becomes $PAUSE.
set -eu
if [ -n "${CGROUPS:-}" ]; then
	for dir in $CGROUPS; do echo 0 >"$dir/cgroup.procs"; done
	unset CGROUPS
	exec unshare --cgroup /bin/sh -c "$SCRIPT"
fi

# Nothing that is mounted here shows elsewhere, and nothing that is mounted elsewhere shows here.
mount --make-rprivate /

# /etc, /opt and /var look like the machine's and can be written without changing it.
for dir in etc opt var; do
	mkdir -p "$STATE/upper/$dir" "$STATE/scratch/$dir"
	mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$STATE/upper/$dir,workdir=$STATE/scratch/$dir" "/$dir"
done
# An overlay shows no mounts of its lower folder, such as the one at which a CI run tests its clone.
[ -x "$PAUSE" ] || {
	echo "The node cannot see $PAUSE: it is on a mount below /etc, /opt or /var. Place the clone and WAGGLE_CACHE outside of these folders." >&2
	exit 1
}
# What the machine itself has there, as a node of another cluster, is not the node's. What the node has had there, stays.
[ -e "$STATE/containerd" ] || rm -rf /etc/cni /opt/cni /etc/kubernetes /var/lib/cni /var/lib/waggle /var/log/pods /var/log/containers
mkdir -p /opt/cni/bin /etc/cni/net.d
# An overlay cannot be the upper folder of another, as containers' file systems need.
for dir in containerd kubelet; do
	mkdir -p "$STATE/$dir" "/var/lib/$dir"
	mount --bind "$STATE/$dir" "/var/lib/$dir"
done

mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
[ "$BPFFS" = no ] || mount -t bpf -o nosuid,nodev,noexec bpf /sys/fs/bpf
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs /run
mkdir -p /run/netns /run/lock
case $HIERARCHIES in *" /sys/fs/cgroup/"*) mount -t tmpfs -o mode=0755 cgroup /sys/fs/cgroup ;; esac
printf '%s\n' "$HIERARCHIES" | while read -r type path options; do
	mkdir -p "$path"
	mount -t "$type" ${options:+-o "$options"} "$type" "$path"
	if [ "$path" = /sys/fs/cgroup ]; then
		# In version 2 with controllers only leaves hold processes.
		path=/sys/fs/cgroup/system
		mkdir -p "$path"
		echo 0 >"$path/cgroup.procs"
		for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
	fi
	echo "$path" >>/run/cgroups # that programs of the node join
done

# Kubelet sets these for the whole machine: it finds them set, and writes to copies.
mkdir /run/tunables
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	file=/proc/sys/${setting%=*}
	copy=/run/tunables/$(echo "${setting%=*}" | tr / -)
	echo "${setting#*=}" >"$copy"
	[ ! -e "$file" ] || mount --bind "$copy" "$file"
done

hostname "$NAME"
# Mounts of pods and of the node reach each other, as kubelet expects.
mount --make-rshared /
echo ready >&3
exec 3>&-
exec "$PAUSE"
