{{/* skep.labels are those of every object, for a component: list $ "agent". */}}
{{- define "skep.labels" -}}
{{- $top := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
{{ include "skep.selector" . }}
{{- end }}

{{/* skep.selector are the labels that choose the Pods of a component. */}}
{{- define "skep.selector" -}}
app.kubernetes.io/name: skep
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* skep.image is a reference: by digest where there is one. */}}
{{- define "skep.image" -}}
{{- $top := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $top.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* skep.placing is where the Pods of a component may run, and how urgent they are. */}}
{{- define "skep.placing" -}}
{{- $top := index . 0 -}}
{{- $part := index . 1 -}}
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with $part.affinity }}
affinity:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* skep.confined is the security context of a container that needs no rights. */}}
{{- define "skep.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* skep.unprivileged is the security context of a Pod of such containers.
OpenShift hands out the user. */}}
{{- define "skep.unprivileged" -}}
runAsNonRoot: true
{{- if not .Values.openshift.enabled }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* skep.capabilities are the agent's. To look at the processes of pods it needs SYS_PTRACE,
and to enter their network namespaces SYS_ADMIN. */}}
{{- define "skep.capabilities" -}}
{{- toYaml (ternary (concat .Values.agent.capabilities (list "SYS_ADMIN" "SYS_PTRACE") | uniq) .Values.agent.capabilities .Values.agent.pods.enabled) }}
{{- end }}

{{/* skep.hostPID is whether the agent runs in the node's PID namespace. */}}
{{- define "skep.hostPID" -}}
{{ or .Values.agent.hostPID .Values.agent.pods.enabled }}
{{- end }}

{{/* skep.runtimeFolder is the folder of the container runtime's socket. */}}
{{- define "skep.runtimeFolder" -}}
{{ dir (trimPrefix "unix://" .Values.agent.pods.runtimeEndpoint) }}
{{- end }}

{{/* skep.nriFolder is the folder of the runtime's socket for NRI plug-ins; empty where NRI is left
out, or where the agent has the folder by the runtime's. */}}
{{- define "skep.nriFolder" -}}
{{- $folder := dir .Values.agent.pods.nriSocket -}}
{{- if and .Values.agent.pods.nriSocket (ne $folder (include "skep.runtimeFolder" . | trim)) }}{{ $folder }}{{ end }}
{{- end }}

{{/* skep.rooted is the security context of a container that reaches the kernel.
AppArmor's usual profile forbids to write below /sys, where the pins are. */}}
{{- define "skep.rooted" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add:
  {{- include "skep.capabilities" . | nindent 2 }}
seccompProfile:
  type: RuntimeDefault
appArmorProfile:
  type: Unconfined
{{- if .Values.openshift.enabled }}
seLinuxOptions:
  type: spc_t
{{- end }}
{{- end }}

{{/* skep.kernelMounts and skep.kernelVolumes are what an agent needs of its
node. /sys/kernel/btf comes with every container's /sys. */}}
{{- define "skep.kernelMounts" -}}
{{- $paths := .Values.agent.hostPaths -}}
- name: bpffs
  mountPath: {{ $paths.bpffs }}
  mountPropagation: HostToContainer
- name: cgroup
  mountPath: {{ $paths.cgroup }}
  mountPropagation: HostToContainer
  readOnly: true
- name: state
  mountPath: /var/lib/skep
{{- range $name := list "tracing" "security" }}
{{- with index $paths $name }}
- name: {{ $name }}
  mountPath: /sys/kernel/{{ $name }}
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "skep.kernelVolumes" -}}
{{- range $name, $path := .Values.agent.hostPaths }}
{{- if $path }}
- name: {{ $name }}
  hostPath:
    path: {{ $path }}
    type: {{ ternary "DirectoryOrCreate" "Directory" (eq $name "state") }}
{{- end }}
{{- end }}
{{- end }}

{{/* skep.mounting is the container that comes before those that need a BPF file
system. What it mounts is to reach the node, for which Kubernetes wants it
privileged. */}}
{{- define "skep.mounting" -}}
- name: bpffs
  image: {{ include "skep.image" (list $ .Values.agent.image) }}
  imagePullPolicy: {{ .Values.agent.image.pullPolicy }}
  args:
  - --mount-bpffs={{ .Values.agent.hostPaths.bpffs }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    privileged: true
    readOnlyRootFilesystem: true
  resources:
    {{- toYaml .Values.agent.resources | nindent 4 }}
  volumeMounts:
  - name: bpffs
    mountPath: {{ .Values.agent.hostPaths.bpffs }}
    mountPropagation: Bidirectional
{{- end }}

{{/* skep.csi is "true" where pods get maps in volumes. Values of an older chart that are used again
do not name it. */}}
{{- define "skep.csi" -}}
{{ (.Values.csi | default dict).enabled | default false }}
{{- end }}

{{/* skep.mounter is the container that mounts volumes of pods that read maps, without its name. What
it mounts is to reach the node, for which Kubernetes wants it privileged; it gives up what it does
not need, and the network, when it starts. It has no token. */}}
{{- define "skep.mounter" -}}
image: {{ include "skep.image" (list $ .Values.agent.image) }}
imagePullPolicy: {{ .Values.agent.image.pullPolicy }}
command: [/skep-mounter]
args:
- --pods={{ .Values.csi.kubeletDir }}/pods
- --socket=/run/skep-mounter/socket
- --pins={{ .Values.csi.pins | default false }}
- --log-format={{ .Values.agent.logFormat }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  privileged: true
  readOnlyRootFilesystem: true
  {{- if .Values.openshift.enabled }}
  seLinuxOptions:
    type: spc_t
  {{- end }}
resources:
  {{- toYaml .Values.csi.resources | nindent 2 }}
volumeMounts:
- name: mounter
  mountPath: /run/skep-mounter
- name: pods
  mountPath: {{ .Values.csi.kubeletDir }}/pods
  mountPropagation: Bidirectional
{{- end }}

{{- define "skep.csiVolumes" -}}
# As every Pod has it.
- name: api
  projected:
    sources:
    - serviceAccountToken:
        expirationSeconds: 3607
        path: token
    - configMap:
        name: kube-root-ca.crt
        items:
        - key: ca.crt
          path: ca.crt
    - downwardAPI:
        items:
        - path: namespace
          fieldRef:
            fieldPath: metadata.namespace
- name: mounter
  emptyDir: {}
- name: pods
  hostPath:
    path: {{ .Values.csi.kubeletDir }}/pods
    type: Directory
- name: csi
  hostPath:
    path: {{ .Values.csi.kubeletDir }}/plugins/csi.skep.dev
    type: DirectoryOrCreate
- name: csi-registry
  hostPath:
    path: {{ .Values.csi.kubeletDir }}/plugins_registry
    type: Directory
{{- end }}

{{/* skep.hooked are the annotations of a hook that runs before the release is
deleted, at a place in the order of hooks. */}}
{{- define "skep.hooked" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* skep.path ends the paths at which the webhook is called, where the chart
chooses it: the one that is given, or was made before, or one that nobody guesses.
Without a cluster to ask it would be another one at each rendering, and admission
fail until the Pods have it. */}}
{{- define "skep.path" -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace "skep-webhook-path" -}}
{{- if .Values.certificates.path -}}
{{ .Values.certificates.path }}
{{- else if $kept -}}
{{ index $kept.data "path" | b64dec }}
{{- else if lookup "v1" "Namespace" "" "kube-system" -}}
{{ randBytes 32 | sha256sum }}
{{- else -}}
{{ fail "certificates.certManager without a cluster to ask needs certificates.path: 64 hexadecimal digits that nobody else knows, as of openssl rand -hex 32" }}
{{- end }}
{{- end }}

{{/* skep.milliseconds are those of a duration such as 1m30s. */}}
{{- define "skep.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | atoi) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{ $sum }}
{{- end }}

{{/* skep.bytes are those of a whole quantity such as 4Gi; empty for others. */}}
{{- define "skep.bytes" -}}
{{- $quantity := ternary . (toString (int64 .)) (kindIs "string" .) -}}
{{- if regexMatch "^[0-9]+([KMGT]i|[kMGT])?$" $quantity -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{ mul (regexFind "[0-9]+" $quantity | int64) (get $units (regexFind "[a-zA-Z]*$" $quantity)) }}
{{- end -}}
{{- end }}

{{/* skep.checked refuses values that do not fit each other, which no schema tells. */}}
{{- define "skep.checked" -}}
{{- $admission := .Values.admission -}}
{{- /* A request may wait a quarter of the budget before it is looked at. */ -}}
{{- if ge (include "skep.milliseconds" $admission.budget | atoi | mul 5) (mul 4000 $admission.timeoutSeconds) -}}
{{ fail (printf "admission.budget %s and a quarter of it are not below admission.timeoutSeconds %v: what takes longer would be refused by the API server, which is to store it with a warning" $admission.budget $admission.timeoutSeconds) }}
{{- end -}}
{{- with .Values.csi -}}
{{- if and .bpfman (not (and .enabled .pins)) -}}
{{ fail "csi.bpfman needs csi.enabled and csi.pins: pods that were written for bpfman read maps by pins, and know no socket" }}
{{- end -}}
{{- end -}}
{{- if has (int .Values.controller.pprofPort) (list 8080 8081 9443 9444 9790) -}}
{{ fail (printf "controller.pprofPort %v is taken: the controller serves metrics at 8080, probes at 8081, the webhook at 9443, the mirror at 9444 and artifacts at 9790" .Values.controller.pprofPort) }}
{{- end -}}
{{- if eq (int .Values.agent.pprofPort) (int .Values.agent.port) -}}
{{ fail (printf "agent.pprofPort %v is agent.port too: give profiles a port of their own" .Values.agent.pprofPort) }}
{{- end -}}
{{- /* Without a cluster to ask, nobody knows. */ -}}
{{- if and .Values.cue.enabled (lookup "v1" "Namespace" "" "kube-system") (not (.Capabilities.APIVersions.Has "source.toolkit.fluxcd.io/v1/ExternalArtifact")) -}}
{{ fail "cue.enabled needs ExternalArtifact of source.toolkit.fluxcd.io/v1, which this cluster does not have: install Flux 2.7 (source-controller v1.7) or later first" }}
{{- end -}}
{{- if .Values.cue.enabled -}}
{{- /* Two Pods cannot have a claim that one node has; of one that is not there yet, nobody knows. */ -}}
{{- with .Values.cue.storage.persistentVolumeClaim -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" $.Release.Namespace .claimName | default dict -}}
{{- if and (gt (int $.Values.controller.replicas) 1) (not (has "ReadWriteMany" (($claim.spec | default dict).accessModes | default list))) -}}
{{ fail (printf "cue.storage.persistentVolumeClaim %s is not known to be ReadWriteMany, and controller.replicas is %v: Pods on two nodes cannot have it. Give each replica a claim of its own (cue.storage.ephemeral), or have one replica" .claimName $.Values.controller.replicas) }}
{{- end -}}
{{- end -}}
{{- /* As cueartifact.MemoryBytes counts. */ -}}
{{- with ((.Values.controller.resources | default dict).limits | default dict).memory -}}
{{- $bytes := include "skep.bytes" . -}}
{{- if and $bytes (gt (mul $.Values.cue.concurrent 536870912) ($bytes | int64)) -}}
{{ fail (printf "cue.concurrent %v takes %v MiB of controller.resources.limits.memory %v, and half of it at most may be for rendering: raise that limit, or render fewer at a time" $.Values.cue.concurrent (mul $.Values.cue.concurrent 256) .) }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $limit := "" -}}
{{- with (.Values.agent.resources | default dict).limits -}}
{{- with .memory -}}{{- $limit = . -}}{{- end -}}
{{- end -}}
{{- if and $limit .Values.agent.mapMemory (include "skep.bytes" $limit) -}}
{{- $bytes := include "skep.bytes" $limit | int64 -}}
{{- if gt (include "skep.bytes" .Values.agent.mapMemory | int64) (max (sub $bytes 1073741824) (div $bytes 2)) -}}
{{ fail (printf "agent.mapMemory %s leaves the agent itself less than 1Gi, or than half, of agent.resources.limits.memory %v: raise that limit, or give maps less" .Values.agent.mapMemory $limit) }}
{{- end -}}
{{- end -}}
{{- end }}
