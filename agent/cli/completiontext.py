"""Fixed parts of the scripts of `agent completion`. `@NAME@` is replaced by tables."""

BASH = r"""# Completion of agent(1) in bash, made by `agent completion bash`. shellcheck shell=bash

# Set `subcommands`, `flags`, `valued` (OPTION=VALUES …) and `arguments` for a command.
_agent_table() {
    subcommands='' flags='' valued='' arguments=''
    case "$1" in
@COMMANDS@
    esac
}

# Print the types of a kind of components, or the options of a kind and a type.
_agent_components() {
    case "$1" in
@COMPONENTS@
    esac
}

# Complete `cur` by the kind of its values.
_agent_values() {
    case "$1" in
    files | files\*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    directories) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    words:*) _agent_reply "$(local words=${1#words:}; words=${words%\*}; echo "${words//,/ }")" ;;
    names:*)
        [[ -n $file && -f $file ]] || return
        _agent_reply "$(sed -nE "s/^[[:space:]]*[^.#![:space:]]+\.(${1#names:})[[:space:]]*[=:]//p" "$file")" ;;
    types) _agent_reply "$(_agent_components "${positional[0]}")" ;;
    options) _agent_reply "$(_agent_components "${positional[0]} ${positional[1]}")" ;;
    esac
}

_agent_reply() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_agent() {
    local cur=${COMP_WORDS[COMP_CWORD]} path=agent word last='' expected='' file='' option number
    local subcommands flags valued arguments
    local -a positional=() kinds
    COMPREPLY=()
    _agent_table "$path"
    for ((number = 1; number < COMP_CWORD; number++)); do
        word=${COMP_WORDS[number]}
        if [[ -n $expected ]]; then
            [[ $word == = ]] && continue # readline has cut --conf=FILE into three words
            case $last in -c | --conf | -f | --conf-file) file=${word/#\~/$HOME} ;; esac
            expected=''
        elif [[ $word == -?* ]]; then
            last=$word
            for option in $valued; do
                [[ ${option%%=*} == "$word" ]] && expected=${option#*=}
            done
        elif [[ " $subcommands " == *" $word "* ]]; then
            path+=" $word"
            _agent_table "$path"
        else
            positional+=("$word")
        fi
    done
    [[ $cur == = ]] && cur=''
    if [[ -n $expected ]]; then
        _agent_values "$expected"
    elif [[ $cur == -* ]]; then
        local names=$flags
        for option in $valued; do names+=" ${option%%=*}"; done
        _agent_reply "$names"
    elif [[ -n $subcommands ]]; then
        _agent_reply "$subcommands"
    else
        read -ra kinds <<<"$arguments"
        number=${#positional[@]}
        if ((number >= ${#kinds[@]})) && [[ $arguments == *\* ]]; then
            number=$((${#kinds[@]} - 1))
        fi
        _agent_values "${kinds[number]}"
    fi
}

complete -F _agent agent
"""

ZSH = r"""#compdef agent
# Completion of agent(1) in zsh, made by `agent completion zsh`.

# Print the types of a kind of components, or the options of a kind and a type.
_agent_components() {
    case "$1" in
@COMPONENTS@
    esac
}

_agent_types() {
    compadd "$@" -- $(_agent_components "$line[1]")
}

_agent_options() {
    compadd "$@" -- $(_agent_components "$line[1] $line[2]")
}

# Complete names of components from the configuration on the command line.
_agent_names() {
    local file number
    for ((number = 1; number < CURRENT - 1; number++)); do
        case $words[number] in
        -c | --conf | -f | --conf-file) file=${~words[number + 1]} ;;
        esac
    done
    [[ -f $file ]] || return 1
    compadd "${(@)argv[1,-2]}" -- $(sed -nE "s/^[[:space:]]*[^.#![:space:]]+\.($argv[-1])[[:space:]]*[=:]//p" "$file")
}

@FUNCTIONS@

if [[ $funcstack[1] == _agent ]]; then
    _agent "$@"
else
    compdef _agent agent
fi
"""

FISH = r"""# Completion of agent(1) in fish, made by `agent completion fish`.

set -g __agent_paths @PATHS@
set -g __agent_valued @VALUED@

# Print the words of the command line that are neither options nor their values, subcommands first.
function __agent_words
    set -l expects 0
    for word in (commandline -opc)[2..]
        if test $expects = 1
            set expects 0
        else if string match -q -- '-*' $word
            contains -- $word $__agent_valued; and set expects 1
        else
            echo $word
        end
    end
end

# Print the command of the command line without `agent`.
function __agent_path
    set -l path
    for word in (__agent_words)
        contains -- (string join ' ' $path $word) $__agent_paths; or break
        set -a path $word
    end
    string join ' ' $path
end

function __agent_at
    test "$(__agent_path)" = "$argv[1]"
end

function __agent_arguments
    set -l path (string split -n ' ' (__agent_path))
    set -l words (__agent_words)
    test (count $path) -eq 0; or set -e words[1..(count $path)]
    string join \n $words
end

function __agent_count
    count (__agent_arguments)
end

# Print names of components from the configuration on the command line.
function __agent_names
    set -l words (commandline -opc)
    for number in (seq 2 (math (count $words) - 1))
        contains -- $words[$number] -c --conf -f --conf-file; and set -f file $words[(math $number + 1)]
    end
    set -q file; or return
    set file (string replace -r '^~' $HOME $file)
    test -f $file; or return
    sed -nE "s/^[[:space:]]*[^.#![:space:]]+\.($argv[1])[[:space:]]*[=:]//p" $file | string split -n ' '
end

# Print the types of a kind of components, or the options of a kind and a type.
function __agent_components
    switch "$argv[1]"
@COMPONENTS@
    end
end

function __agent_types
    __agent_components (__agent_arguments)[1]
end

function __agent_options
    __agent_components (string join ' ' (__agent_arguments)[1..2])
end

complete -c agent -f
@COMMANDS@
"""
